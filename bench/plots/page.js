// The script of results/index.html: shows what the address names, and changes the address with every choice.
// Text from results becomes text nodes only, never HTML.
"use strict";

// --- What is shown: functions without a page, which tests/plots/test_html.py runs. ---

// In this order: the values of each depend on those before.
const CHOICES = {shown: "Machine", workload: "Workload", model: "Model", phase: "Phase", scope: "Measured",
  precision: "Precision", batch_size: "Batch size", framework: "Framework", kind: "Device"};
const NOT_SEARCHED = ["note", "cpu_name", "source"]; // they name other devices
let data, results;
const say = (text) => Object.hasOwn(data.words, text) ? data.words[text] : text;
const collator = new Intl.Collator("en", {numeric: true});

const readResults = (data) => data.results.map((cells) => {
  const text = cells.flatMap((cell, i) => typeof cell !== "string" || NOT_SEARCHED.includes(data.columns[i]) ? []
    : [cell, say(cell)]).join("\n");
  const result = Object.fromEntries(cells.map((cell, i) => [data.columns[i], cell]));
  return {...result, words: wordsOf(`${text}\n${joinUnits(text)}`)};
});

// So that a search for "4 bits" does not find batch 4 in 16 bits.
const joinUnits = (text) => text.replace(/(?<=\d)[ -](?=(bits?|px|tokens|cores?|devices|threads)\b)/gi, "");
// Two digits begin a word, so that "resnet 18" and "rtx4090" are found; 3.2 is one.
const wordsOf = (text) =>
  text.toLowerCase().split(/(?<!\d)\.|\.(?!\d)|[^\p{L}\p{N}.]+|(?<=\p{L})(?=\d\d)/u).filter(Boolean);

// Lines in which each word begins a word. Numbers and short words are whole, unless the last one is still being typed.
function search(results, text) {
  const asked = wordsOf(joinUnits(text)).filter((word) => word !== "geforce"); // drivers print it, sources do not
  return asked.reduce((found, word, i) => {
    const isShort = /^[\d.]+$/.test(word) || word.length <= 3;
    const begin = found.filter(({words}) => words.some((each) => each.startsWith(word)));
    const whole = isShort ? begin.filter(({words}) => words.includes(word)) : begin;
    return whole.length || i < asked.length - 1 ? whole : begin;
  }, results);
}

const isPublished = (result) => result.source !== "";
const isSound = (result) => result.value > 0 && result.status === "";
const unique = (results, name) => [...new Set(results.map((result) => result[name]))];

// What the address asks for: `found` by a search and other choices; `results`, those of one work, or all that are found
// if these leave several works; `works` to choose from, [work, its sound results].
function choose(all, address) {
  const chosen = {}, options = {};
  let results = search(all, address.q ?? "");
  for (const name of Object.keys(CHOICES)) {
    options[name] = unique(results, name).filter((value) => value !== "").sort(collator.compare);
    chosen[name] = options[name].includes(address[name]) ? address[name] : "";
    if (chosen[name]) results = results.filter((result) => result[name] === chosen[name]);
  }
  const names = unique(results, "work"), opens = results.length === all.length ? data.opens : "";
  chosen.work = names.length === 1 ? names[0] : names.includes(address.work) ? address.work : opens;
  const byWork = new Map(names.map((work) => [work, []]));
  results.filter(isSound).forEach((result) => byWork.get(result.work).push(result));
  const works = [...byWork].filter(([work, found]) => found.length > 1 || work === chosen.work);
  works.sort(([a], [b]) => collator.compare(a, b));
  const shown = chosen.work ? results.filter((result) => result.work === chosen.work) : results;
  shown.sort((a, b) => collator.compare(a.work, b.work) || b.value - a.value);
  return {chosen, options, works, found: results, results: shown};
}

const readAddress = (hash) => Object.fromEntries(new URLSearchParams(hash.replace(/^#/, "")));
const writeAddress = (address) => "#" + new URLSearchParams(Object.entries(address).filter(([, value]) => value));

function figure(value, digits = 4) {
  if (value === null) return "";
  const rounded = Number(value.toPrecision(digits));
  return rounded >= 1e4 ? rounded.toLocaleString("en") : String(rounded);
}

const percent = (share) => share < 0.015 ? figure(100 * share, 1) : (100 * share).toFixed(0);
// Of the bandwidth for what reads all weights in each step.
const readsMemory = (result) => result.phase === "decode" || result.of_peak === null;
const shareOf = (result) => readsMemory(result) ? result.of_bandwidth : result.of_peak;
const join = (...parts) => parts.filter(Boolean).join(", ");
const interval = (result) => result.low === null || result.high === null ? "" : `${figure(result.low)} to `
  + figure(result.high) + (result.processes === 1 && !isPublished(result) ? " (one process)" : "");
const rateOf = (result) => result.value > 0 ? `${figure(result.value)} ${result.per}` : "";
const warnings = (result) => `${result.flags} ${result.status}`.split(" ").filter(Boolean);

// --- The page. ---

// Make an element; strings become text.
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  Object.entries(attributes).forEach(([name, value]) => made.setAttribute(name, value));
  made.append(...children);
  return made;
}

const at = (id) => document.getElementById(id);

// Columns of the table: title, class, and text or node of a result.
const COLUMNS = [
  {title: "Device", class: "long", cell: (result) => element("span", {}, result.shown,
    element("span", {class: "tag"}, isPublished(result) ? " (published)" : ` ${result.disturbed}`),
    element("div", {class: "narrow"}, result.how))}, // if the page is too narrow for its column
  {title: "Work", class: "long work",
    cell: ({work}) => element("a", {href: writeAddress({work})}, work)}, // of all machines
  {title: "", class: "bar", cell: (result) => result.bar},
  {title: "Result", class: "number", cell: rateOf},
  {title: "Interval", class: "number wide", cell: interval},
  {title: "Settings", class: "long wide", cell: (result) => result.how},
  {title: "Of peak", class: "number wide", cell: (result) => !shareOf(result) ? ""
    : `${percent(shareOf(result))} %${readsMemory(result) ? " of bandwidth" : ""}`},
  {title: "Flags", class: "long wide", cell: (result) => join(...warnings(result))},
  {title: "More", class: "", cell: (result) => {
    const button = element("button", {"aria-label": `Details of ${result.shown}, ${result.work}`}, "Details");
    button.onclick = () => { at("facts").replaceChildren(...describe(result)); at("details").showModal(); };
    return button;
  }},
];

// Terms and descriptions of what is known of a result.
function describe(result) {
  const flags = warnings(result).map((flag) =>
    element("div", {}, Object.hasOwn(data.flags, flag) ? `${flag}: ${data.flags[flag]}` : flag));
  const measured = (value, unit) => value && `${figure(value)} ${unit}`;
  const share = (part, of) => part && `${percent(part)} % of this machine's measured ${of}`;
  const {source} = result, link = element("a", {href: source, rel: "noreferrer"}, source);
  const facts = {
    Result: rateOf(result), Interval: interval(result), Mean: measured(result.mean, result.per),
    Measured: isPublished(result) ? "by others" : `in ${result.processes} process${result.processes > 1 ? "es" : ""}`,
    Work: join(say(result.workload), result.work), Settings: result.how, Setup: result.all_setup,
    Machine: join(result.machine, say(result.kind)), Host: result.kind === "gpu" && result.cpu_name,
    Clock: join(measured(result.clock_mhz, "MHz"), result.throttle_reasons), Versions: result.versions,
    Date: result.date, Step: join(measured(result.step_seconds_median, "s (median)"),
      measured(result.step_seconds_p95, "s (95th percentile)"), measured(result.first_step_seconds, "s (first)")),
    Arithmetic: join(measured(result.tflops, "TFLOP/s"), share(result.of_peak, "peak")),
    "Memory read": join(measured(result.bandwidth, "GB/s"), share(result.of_bandwidth, "bandwidth")),
    "Peak memory": result.peak_memory_bytes && `${figure(result.peak_memory_bytes / 1e9, 3)} GB`,
    Energy: join(measured(result.power_watts, "W"), measured(result.joules_per_item, "J per item")),
    Note: result.note, Source: /^https?:\/\//i.test(source) ? link : source,
    Flags: flags.length ? element("div", {}, ...flags) : "",
  };
  return Object.entries(facts).filter(([, fact]) => fact).flatMap(([name, fact]) =>
    [element("dt", {}, name), element("dd", {}, fact)]);
}

// Draw a result's bar with its interval; `most` is as long as the column is wide.
function drawBar(result, most) {
  const part = (value) => `${100 * value / most}%`;
  const bar = element("div", {class: isPublished(result) ? "published" : "own", style: `width: ${part(result.value)}`});
  const style = `left: ${part(result.low)}; width: ${part(result.high - result.low)}`;
  const ends = interval(result) ? [element("div", {class: "interval", style})] : [];
  return element("div", {class: result.disturbed}, bar, ...ends);
}

// Show a table of results, with bars if they are of one work.
function showTable(results, isOneWork) {
  const sound = results.filter(isSound), most = Math.max(...sound.map((result) => Math.max(result.value, result.high)));
  const columns = COLUMNS.filter((column) => !column.class.includes(isOneWork ? "work" : "bar"));
  const rows = results.map((result) => {
    result.bar = isOneWork && sound.includes(result) ? drawBar(result, most) : "";
    return element("tr", {}, ...columns.map((column) => element("td", {class: column.class}, column.cell(result))));
  });
  const head = columns.map((column) => element("th", {scope: "col", class: column.class}, column.title));
  at("table").replaceChildren(element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...rows));
}

const option = (value, text) => element("option", {value}, text);

// Show the values of a choice; its element stays, and so the focus. One value is no choice.
function showSelect(name, options, value) {
  const select = at("form").elements[name];
  select.replaceChildren(...options);
  select.value = value;
  select.parentNode.hidden = options.length < 2;
}

function render() {
  const address = readAddress(location.hash), view = choose(results, address), {chosen} = view, q = address.q ?? "";
  const works = view.works.map(([work, found]) => option(work, `${work} (${unique(found, "shown").length})`));
  if (view.found.length < results.length) works.unshift(option("", "all that are found"));
  showSelect("work", works, chosen.work);
  for (const name of Object.keys(CHOICES)) {
    const values = view.options[name].map((value) => option(value, say(value)));
    showSelect(name, values.length > 1 ? [option("", "any"), ...values] : [], chosen[name]);
  }
  if (document.activeElement !== at("form").q) at("form").q.value = q;
  showTable(view.results, Boolean(chosen.work));
  at("count").textContent = `${view.results.length} of ${results.length} results.`;
  at("none").hidden = view.found.length;
  at("heading").textContent = chosen.work
    || join(q && `\u201c${q}\u201d`, ...Object.keys(CHOICES).map((name) => say(chosen[name])));
  document.title = `${at("heading").textContent} - machine-learning speed test`;
}

function start() {
  data = JSON.parse(at("data").textContent);
  results = readResults(data);
  for (const [name, label] of Object.entries({work: "Work (number of machines)", ...CHOICES})) {
    const place = name === "work" || name === "shown" ? "choices" : "settings";
    at(place).append(element("label", {}, label, element("select", {name})));
  }
  at("form").oninput = ({target}) => {
    const address = Object.fromEntries(new FormData(at("form")));
    if (target.name !== "work") address.work = ""; // it need not be among what is found then
    location[target.name === "q" ? "replace" : "assign"](writeAddress(address)); // "back" skips what was typed
  };
  window.addEventListener("hashchange", render);
  render();
}

if (typeof document !== "undefined") start();
