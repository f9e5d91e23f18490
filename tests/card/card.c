// A card made of software: libcudart and libcuda in one library, for the host's code only. See card.py.
//
// Its memory is the host's, and is NaN at first. The host sees what it has submitted only after it has waited for the
// stream: events are not ready before, and pinned memory is NaN until the copy to it has ended. If the source of a copy
// in pinned memory is changed before, the card breaks. card.py computes the kernels.

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "driver_types.h"

typedef cudaError_t Error;
struct block { char *start; size_t size; int device, is_host; struct block *next; };
struct copy { long number; char *to, *from, *bytes; size_t size; struct copy *next; };  // bytes: the source at first
struct stream { int device; long submitted, done; struct copy *first, *last; struct stream *next; };
struct event { struct stream *stream; long number; double seconds; };

static pthread_mutex_t mutex = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static struct block *blocks;
static struct stream defaults[8], *streams;
static struct cudaDeviceProp cards[8];
static size_t used[8];
static int count, is_capturing;
static __thread int current;
static __thread Error last_error;
Error card_broken;  // what every call returns from now on

static Error fail(Error error) { return last_error = error; }
static Error state(void) { return card_broken ? fail(card_broken) : cudaSuccess; }

// Devices and errors

void card_add(const char *name, long mebibytes, int major, int minor) {
  cards[count] = (struct cudaDeviceProp){.totalGlobalMem = mebibytes << 20, .major = major, .minor = minor,
    .multiProcessorCount = 128, .warpSize = 32, .maxThreadsPerBlock = 1024, .maxThreadsPerMultiProcessor = 1536,
    .sharedMemPerBlock = 49152, .sharedMemPerBlockOptin = 101376, .regsPerMultiprocessor = 65536};
  strncpy(cards[count].name, name, 255);
  defaults[count].device = count;
  count++;
}
Error cudaGetDeviceCount(int *found) { return (*found = count) ? cudaSuccess : fail(cudaErrorNoDevice); }
Error cudaGetDevice(int *device) { return *device = current, cudaSuccess; }
Error cudaSetDevice(int device) { return device < count ? current = device, cudaSuccess : fail(cudaErrorInvalidDevice); }
Error cudaGetDeviceProperties(struct cudaDeviceProp *found, int device) { return *found = cards[device], cudaSuccess; }
Error cudaDriverGetVersion(int *version) { return *version = 13020, cudaSuccess; }
Error cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { return *least = *greatest = 0; }
Error cudaDeviceCanAccessPeer(int *can, int device, int other) { return *can = 0; }
Error cudaGetLastError(void) { Error error = last_error; return last_error = cudaSuccess, error; }
Error cudaPeekAtLastError(void) { return last_error; }
const char *cudaGetErrorString(Error error) {
  static const char *words[1000] = {
    [cudaErrorMemoryAllocation] = "out of memory", [cudaErrorNoDevice] = "no CUDA-capable device is detected",
    [cudaErrorDevicesUnavailable] = "CUDA-capable device(s) is/are busy or unavailable",
    [cudaErrorIllegalAddress] = "an illegal memory access was encountered", [cudaErrorNotReady] = "device not ready"};
  return words[error] ? words[error] : "unknown error";
}
const char *cudaGetErrorName(Error error) { return cudaGetErrorString(error); }

// Streams and events

static struct stream *stream_of(struct stream *stream) {
  return (size_t)stream < 3 ? &defaults[current] : stream;  // 1 and 2 are names of the default stream
}
static Error submit(struct stream *stream, struct copy *copy) {
  pthread_mutex_lock(&mutex);
  stream->submitted++;
  if (copy) {
    copy->number = stream->submitted;
    stream->last = *(stream->first ? &stream->last->next : &stream->first) = copy;
  }
  pthread_mutex_unlock(&mutex);
  return state();
}
static Error wait_for(struct stream *stream, long until) {
  pthread_mutex_lock(&mutex);
  for (struct copy *copy; (copy = stream->first) && copy->number <= until; free(copy)) {
    stream->first = copy->next;
    if (copy->to) memcpy(copy->to, copy->bytes, copy->size);
    if (copy->from && memcmp(copy->from, copy->bytes, copy->size)) card_broken = cudaErrorIllegalAddress;
    free(copy->bytes);
  }
  if (until > stream->done) stream->done = until;
  pthread_mutex_unlock(&mutex);
  return state();
}
void card_launch(struct stream *stream) { submit(stream_of(stream), NULL); }  // a kernel, which card.py computes
long card_pending(void) {  // what was submitted to the current device, and not awaited
  long pending = defaults[current].submitted - defaults[current].done;
  for (struct stream *each = streams; each; each = each->next)
    pending += each->device == current ? each->submitted - each->done : 0;
  return pending;
}
Error cudaStreamCreateWithPriority(struct stream **stream, unsigned flags, int priority) {
  *stream = calloc(1, sizeof **stream);
  **stream = (struct stream){.device = current, .next = streams};
  streams = *stream;
  return cudaSuccess;
}
Error cudaStreamSynchronize(struct stream *stream) { return wait_for(stream_of(stream), stream_of(stream)->submitted); }
Error cudaStreamQuery(struct stream *stream) {
  return stream_of(stream)->done < stream_of(stream)->submitted ? cudaErrorNotReady : cudaSuccess;
}
Error cudaDeviceSynchronize(void) {
  for (struct stream *each = streams; each; each = each->next)
    if (each->device == current) cudaStreamSynchronize(each);
  return cudaStreamSynchronize(NULL);
}
Error cudaEventCreateWithFlags(struct event **event, unsigned flags) { return !(*event = calloc(1, sizeof **event)); }
Error cudaEventRecord(struct event *event, struct stream *stream) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  submit(stream_of(stream), NULL);
  *event = (struct event){stream_of(stream), stream_of(stream)->submitted, now.tv_sec + 1e-9 * now.tv_nsec};
  return state();
}
Error cudaEventRecordWithFlags(struct event *event, void *stream, int flags) { return cudaEventRecord(event, stream); }
Error cudaEventSynchronize(struct event *event) { return event->stream ? wait_for(event->stream, event->number) : 0; }
Error cudaEventQuery(struct event *event) {
  return event->stream && event->stream->done < event->number ? cudaErrorNotReady : cudaSuccess;
}
Error cudaEventElapsedTime(float *ms, struct event *from, struct event *to) {
  *ms = 1e3 * (to->seconds - from->seconds);
  return cudaEventQuery(from) || cudaEventQuery(to) ? fail(cudaErrorNotReady) : cudaSuccess;
}

// Memory

static struct block **find(const char *pointer) {
  struct block **place = &blocks;
  while (*place && !(pointer >= (*place)->start && pointer < (*place)->start + (*place)->size)) place = &(*place)->next;
  return place;
}
static Error allocate(void **start, size_t size, int is_host) {
  if (state()) return card_broken;
  if (!is_host && used[current] + size > cards[current].totalGlobalMem) return fail(cudaErrorMemoryAllocation);
  pthread_mutex_lock(&mutex);
  struct block *block = malloc(sizeof *block);
  *block = (struct block){*start = aligned_alloc(512, (size + 511) / 512 * 512), size, current, is_host, blocks};
  blocks = block;
  if (!is_host) used[current] += size, memset(*start, 0xff, size);
  pthread_mutex_unlock(&mutex);
  return cudaSuccess;
}
Error cudaMalloc(void **start, size_t size) { return allocate(start, size, 0); }
Error cudaHostAlloc(void **start, size_t size, unsigned flags) { return allocate(start, size, 1); }
Error cudaFree(void *start) {
  struct block **place = find(start), *block = *place;
  if (!block) return cudaSuccess;
  cudaDeviceSynchronize();
  pthread_mutex_lock(&mutex);
  *place = block->next;
  used[block->device] -= block->is_host ? 0 : block->size;
  free(block->start);
  free(block);
  pthread_mutex_unlock(&mutex);
  return cudaSuccess;
}
Error cudaFreeHost(void *start) { return cudaFree(start); }
Error cudaMemGetInfo(size_t *available, size_t *total) {
  *total = cards[current].totalGlobalMem;
  *available = *total - used[current];
  return state();
}
Error cudaMemcpyAsync(char *to, char *from, size_t size, int kind, struct stream *stream) {
  pthread_mutex_lock(&mutex);
  struct block *target = *find(to), *source = *find(from);
  struct copy *copy = calloc(1, sizeof *copy);
  *copy = (struct copy){.size = size, .bytes = memcpy(malloc(size), from, size)};
  if (target && target->is_host) memset(copy->to = to, 0xff, size);
  else memcpy(to, from, size);
  if (source && source->is_host) copy->from = from;
  submit(stream_of(stream), copy);
  pthread_mutex_unlock(&mutex);
  return target ? state() : cudaStreamSynchronize(stream);  // CUDA waits for copies to memory that is not pinned
}
Error cudaMemsetAsync(void *start, int value, size_t size, struct stream *stream) {
  return memset(start, value, size), submit(stream_of(stream), NULL);
}
Error cudaPointerGetAttributes(struct cudaPointerAttributes *found, char *pointer) {
  struct block *block = *find(pointer);
  enum cudaMemoryType type = !block ? cudaMemoryTypeUnregistered : block->is_host ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
  return *found = (struct cudaPointerAttributes){type, block ? block->device : -2}, cudaSuccess;
}

// Kernels: one that card.py does not compute is an error. With CARD_COMPILES it does nothing, and graphs are recorded.

int card_nothing(void) { return getenv("CARD_COMPILES") ? 0 : cudaErrorNoKernelImageForDevice; }
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) { return !(*active = 1); }
Error cudaGetDriverEntryPointByVersion(const char *name, void **call, unsigned version, long flags, int *status) {
  *call = strcmp(name, "cuDevicePrimaryCtxGetState") ? (void *)card_nothing : (void *)cuDevicePrimaryCtxGetState;
  return status ? *status = 0 : 0;
}
int cuFuncGetAttribute(int *value, int attribute, void *function) { return *value = attribute ? 0 : 1024, 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  return *value = attribute == cudaDevAttrWarpSize ? 32 : attribute == cudaDevAttrMultiProcessorCount ? 128 : 101376, 0;
}
Error cudaStreamIsCapturing(void *stream, int *status) { return *status = is_capturing, cudaSuccess; }
Error cudaStreamGetCaptureInfo(void *stream, int *status) { return *status = is_capturing, cudaSuccess; }
Error cudaStreamBeginCapture(void) { return is_capturing = 1, cudaSuccess; }
Error cudaStreamEndCapture(void *stream, void **graph) { return is_capturing = 0, *graph = blocks, cudaSuccess; }
#define DONE(name) Error name(void) { return cudaSuccess; }
DONE(cudaEventDestroy) DONE(cudaStreamDestroy) DONE(cudaStreamWaitEvent) DONE(cudaThreadExchangeStreamCaptureMode)
