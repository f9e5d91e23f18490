// A card made of software: libcudart and libcuda in one library, for the host's code only. See card.py.
//
// Its memory is the host's, and is NaN at first. The host sees what it has submitted only after it has waited for the
// card: events are not ready before, and pinned memory is NaN until the copy to it has ended. If the source of a copy
// in pinned memory is changed before, the card breaks. All streams of a card are one queue. The clock moves only by what
// the host submits and waits for.

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "driver_types.h"

typedef cudaError_t Error;
struct block { char *start; size_t size; int device, is_host; struct block *next; };
struct copy { long number; char *to, *from, *bytes; size_t size; struct copy *next; };  // bytes: the source at first
struct card { struct cudaDeviceProp properties; size_t used; long submitted, done; struct copy *first, *last; };
struct event { struct card *card; long number; };

static pthread_mutex_t mutex = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static struct block *blocks;
static struct card cards[8];
static int count;
static __thread int current;
static __thread Error last_error;
Error card_broken;  // what every call returns from now on
static double now, free_at;  // seconds; when the card will have done all that was submitted

static Error fail(Error error) { return last_error = error; }
static Error state(void) { return card_broken ? fail(card_broken) : cudaSuccess; }

// Devices and errors

void card_add(const char *name, long mebibytes, int major, int minor) {
  cards[count].properties = (struct cudaDeviceProp){.totalGlobalMem = mebibytes << 20, .memoryBusWidth = 384, .major = major, .minor = minor,
    .multiProcessorCount = 128, .warpSize = 32, .maxThreadsPerBlock = 1024, .maxThreadsPerMultiProcessor = 1536,
    .sharedMemPerBlock = 49152, .sharedMemPerBlockOptin = 101376, .regsPerMultiprocessor = 65536};
  strncpy(cards[count++].properties.name, name, 255);
}
Error cudaGetDeviceCount(int *found) { return (*found = count) ? cudaSuccess : fail(cudaErrorNoDevice); }
Error cudaGetDevice(int *device) { return *device = current, cudaSuccess; }
Error cudaSetDevice(int device) { return device < count ? current = device, cudaSuccess : fail(cudaErrorInvalidDevice); }
Error cudaGetDeviceProperties(struct cudaDeviceProp *found, int device) {
  return *found = cards[device].properties, cudaSuccess;
}
Error cudaDriverGetVersion(int *version) { return *version = 13020, cudaSuccess; }
Error cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { return *least = *greatest = 0; }
Error cudaGetLastError(void) { Error error = last_error; return last_error = cudaSuccess, error; }
Error cudaPeekAtLastError(void) { return last_error; }
const char *cudaGetErrorName(Error error) { return "an error"; }
const char *cudaGetErrorString(Error error) {
  return error == cudaErrorIllegalAddress ? "an illegal memory access was encountered" : "unknown error";
}

// What the host waits for

static Error submit(struct copy *copy) {
  struct card *card = &cards[current];
  pthread_mutex_lock(&mutex);
  card->submitted++;
  if (copy) {
    copy->number = card->submitted;
    card->last = *(card->first ? &card->last->next : &card->first) = copy;
  }
  pthread_mutex_unlock(&mutex);
  return state();
}
static Error wait_for(struct card *card, long until) {
  pthread_mutex_lock(&mutex);
  for (struct copy *copy; (copy = card->first) && copy->number <= until; free(copy)) {
    card->first = copy->next;
    if (copy->to) memcpy(copy->to, copy->bytes, copy->size);
    if (copy->from && memcmp(copy->from, copy->bytes, copy->size)) card_broken = cudaErrorIllegalAddress;
    free(copy->bytes);
  }
  if (until > card->done) {
    card->done = until;
    if (now < free_at) now = free_at;  // for an earlier one, too, the host waits for all
  }
  pthread_mutex_unlock(&mutex);
  return state();
}
void card_launch(double seconds, double host_seconds) {  // a kernel, which card.py computes
  pthread_mutex_lock(&mutex);
  now += host_seconds;
  free_at = (now > free_at ? now : free_at) + seconds;
  submit(NULL);
  pthread_mutex_unlock(&mutex);
}
double card_now(void) { return now; }
Error cudaDeviceSynchronize(void) { return wait_for(&cards[current], cards[current].submitted); }
Error cudaStreamSynchronize(void *stream) { return cudaDeviceSynchronize(); }
Error cudaStreamCreateWithPriority(void **stream, unsigned flags, int priority) { return *stream = cards, cudaSuccess; }
Error cudaEventCreateWithFlags(struct event **event, unsigned flags) { return !(*event = calloc(1, sizeof **event)); }
Error cudaEventRecord(struct event *event, void *stream) {
  submit(NULL);
  return *event = (struct event){&cards[current], cards[current].submitted}, state();
}
Error cudaEventRecordWithFlags(struct event *event, void *stream, int flags) { return cudaEventRecord(event, stream); }
Error cudaEventSynchronize(struct event *event) { return event->card ? wait_for(event->card, event->number) : 0; }
Error cudaEventQuery(struct event *event) {
  return event->card && event->card->done < event->number ? cudaErrorNotReady : cudaSuccess;
}

// Memory

static struct block **find(const char *pointer) {
  struct block **place = &blocks;
  while (*place && !(pointer >= (*place)->start && pointer < (*place)->start + (*place)->size)) place = &(*place)->next;
  return place;
}
static Error allocate(void **start, size_t size, int is_host) {
  struct card *card = &cards[current];
  if (state()) return card_broken;
  if (!is_host && card->used + size > card->properties.totalGlobalMem) return fail(cudaErrorMemoryAllocation);
  pthread_mutex_lock(&mutex);
  struct block *block = malloc(sizeof *block);
  *block = (struct block){*start = aligned_alloc(512, (size + 511) / 512 * 512), size, current, is_host, blocks};
  blocks = block;
  card->used += is_host ? 0 : size;
  memset(*start, 0xff, size);
  pthread_mutex_unlock(&mutex);
  return cudaSuccess;
}
Error cudaMalloc(void **start, size_t size) { return allocate(start, size, 0); }
Error cudaHostAlloc(void **start, size_t size, unsigned flags) { return allocate(start, size, 1); }
Error cudaFree(void *start) {
  pthread_mutex_lock(&mutex);
  cudaDeviceSynchronize();
  struct block **place = find(start), *block = *place;
  if (block) {
    *place = block->next;
    cards[block->device].used -= block->is_host ? 0 : block->size;
    free(block->start);
    free(block);
  }
  pthread_mutex_unlock(&mutex);
  return cudaSuccess;
}
Error cudaFreeHost(void *start) { return cudaFree(start); }
Error cudaMemGetInfo(size_t *available, size_t *total) {
  *total = cards[current].properties.totalGlobalMem;
  return *available = *total - cards[current].used, state();
}
Error cudaMemcpyAsync(char *to, char *from, size_t size, int kind, void *stream) {
  pthread_mutex_lock(&mutex);
  struct block *target = *find(to), *source = *find(from);
  struct copy *copy = calloc(1, sizeof *copy);
  *copy = (struct copy){.size = size, .bytes = memcpy(malloc(size), from, size)};
  if (target && target->is_host) memset(copy->to = to, 0xff, size);
  else memcpy(to, from, size);
  if (source && source->is_host) copy->from = from;
  submit(copy);
  pthread_mutex_unlock(&mutex);
  return target ? state() : cudaDeviceSynchronize();  // CUDA waits for copies to memory that is not pinned
}
Error cudaPointerGetAttributes(struct cudaPointerAttributes *found, char *pointer) {
  struct block *block = *find(pointer);
  *found = (struct cudaPointerAttributes){.device = block ? block->device : -2};
  if (block) found->type = block->is_host ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
  return cudaSuccess;
}

// Kernels: one that card.py does not compute is an error.

int card_nothing(void) { return cudaErrorNoKernelImageForDevice; }
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) { return !(*active = 1); }
Error cudaGetDriverEntryPointByVersion(const char *name, void **call, unsigned version, long flags, int *status) {
  *call = strcmp(name, "cuDevicePrimaryCtxGetState") ? (void *)card_nothing : (void *)cuDevicePrimaryCtxGetState;
  return status ? *status = 0 : 0;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  switch (attribute) {
    case cudaDevAttrWarpSize: return *value = 32, 0;
    case cudaDevAttrMultiProcessorCount: return *value = 128, 0;
    case cudaDevAttrMemoryClockRate: return *value = 10501000, 0;  // kHz; with 384 bits 1008 GB/s
    default: return *value = 101376, 0;
  }
}
Error cudaDeviceGetAttribute(int *value, int attribute, int device) { return cuDeviceGetAttribute(value, attribute, device); }
Error cudaStreamIsCapturing(void *stream, int *status) { return *status = 0, cudaSuccess; }
Error cudaStreamGetCaptureInfo(void *stream, int *status) { return *status = 0, cudaSuccess; }
#define DONE(name) Error name(void) { return cudaSuccess; }
DONE(cudaEventDestroy) DONE(cudaStreamDestroy) DONE(cudaStreamWaitEvent) DONE(cudaThreadExchangeStreamCaptureMode)
