// The script of results/index.html: shows what the address names, and changes the address with every choice.
// Text from results becomes text nodes only, never HTML.
"use strict";

// --- What is shown: functions without a page, which tests/plots/test_html.py runs. ---

// In this order: the values of each depend on those before.
const CHOICES = {shown: "Machine", workload: "Workload", model: "Model", phase: "Phase", scope: "Measured",
  precision: "Precision", batch_size: "Batch size", framework: "Framework", kind: "Device"};
const NOT_SEARCHED = ["note", "cpu_name", "source"]; // they name other devices
let data, lines;
const say = (text) => Object.hasOwn(data.words, text) ? data.words[text] : text;
const collator = new Intl.Collator("en", {numeric: true});

const readLines = (data) => data.lines.map((cells) => {
  const text = cells.flatMap((cell, i) => typeof cell !== "string" || NOT_SEARCHED.includes(data.columns[i]) ? []
    : [cell, say(cell)]).join("\n");
  const line = Object.fromEntries(cells.map((cell, i) => [data.columns[i], cell]));
  return {...line, words: wordsOf(`${text}\n${joinUnits(text)}`)};
});

// So that a search for "4 bits" does not find batch 4 in 16 bits.
const joinUnits = (text) => text.replace(/(?<=\d)[ -](?=(bits?|px|tokens|cores?|devices|threads)\b)/gi, "");
// Two digits begin a word, so that "resnet 18" and "rtx4090" are found; 3.2 is one.
const wordsOf = (text) =>
  text.toLowerCase().split(/(?<!\d)\.|\.(?!\d)|[^\p{L}\p{N}.]+|(?<=\p{L})(?=\d\d)/u).filter(Boolean);

// Lines in which each word begins a word. Numbers and short words are whole, unless the last one is still being typed.
function search(lines, text) {
  const asked = wordsOf(joinUnits(text)).filter((word) => word !== "geforce"); // drivers print it, sources do not
  return asked.reduce((found, word, i) => {
    const isShort = /^[\d.]+$/.test(word) || word.length <= 3;
    const begin = found.filter(({words}) => words.some((each) => each.startsWith(word)));
    const whole = isShort ? begin.filter(({words}) => words.includes(word)) : begin;
    return whole.length || i < asked.length - 1 ? whole : begin;
  }, lines);
}

const isPublished = (line) => line.source !== "";
const isSound = (line) => line.value > 0 && line.status === "";
const unique = (lines, name) => [...new Set(lines.map((line) => line[name]))];

// What the address asks for: `found` by a search and other choices; `lines`, those of one work, or all that are found
// if these leave several works; `works` to choose from, [work, its sound lines].
function choose(all, address) {
  const chosen = {}, options = {};
  let lines = search(all, address.q ?? "");
  for (const name of Object.keys(CHOICES)) {
    options[name] = unique(lines, name).filter((value) => value !== "").sort(collator.compare);
    chosen[name] = options[name].includes(address[name]) ? address[name] : "";
    if (chosen[name]) lines = lines.filter((line) => line[name] === chosen[name]);
  }
  const names = unique(lines, "work"), opens = lines.length === all.length ? data.opens : "";
  chosen.work = names.length === 1 ? names[0] : names.includes(address.work) ? address.work : opens;
  const byWork = new Map(names.map((work) => [work, []]));
  lines.filter(isSound).forEach((line) => byWork.get(line.work).push(line));
  const works = [...byWork].filter(([work, found]) => found.length > 1 || work === chosen.work);
  works.sort(([a], [b]) => collator.compare(a, b));
  const shown = chosen.work ? lines.filter((line) => line.work === chosen.work) : lines;
  shown.sort((a, b) => collator.compare(a.work, b.work) || b.value - a.value);
  return {chosen, options, works, found: lines, lines: shown};
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
const readsMemory = (line) => line.phase === "decode" || line.of_peak === null;
const shareOf = (line) => readsMemory(line) ? line.of_bandwidth : line.of_peak;
const join = (...parts) => parts.filter(Boolean).join(", ");
const interval = (line) => line.low === null || line.high === null ? "" : `${figure(line.low)} to ${figure(line.high)}`
  + (line.processes === 1 && !isPublished(line) ? " (one process)" : "");
const result = (line) => line.value > 0 ? `${figure(line.value)} ${line.per}` : "";
const warnings = (line) => `${line.flags} ${line.status}`.split(" ").filter(Boolean);

// --- The page. ---

// Make an element; strings become text.
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  Object.entries(attributes).forEach(([name, value]) => made.setAttribute(name, value));
  made.append(...children);
  return made;
}

const at = (id) => document.getElementById(id);

// Columns of the table: title, class, and text or node of a line.
const COLUMNS = [
  {title: "Device", class: "long", cell: (line) => element("span", {}, line.shown,
    element("span", {class: "tag"}, isPublished(line) ? " (published)" : ` ${line.disturbed}`),
    element("div", {class: "narrow"}, line.how))}, // if the page is too narrow for its column
  {title: "Work", class: "long work",
    cell: ({work}) => element("a", {href: writeAddress({work})}, work)}, // of all machines
  {title: "", class: "bar", cell: (line) => line.bar},
  {title: "Result", class: "number", cell: result},
  {title: "Interval", class: "number wide", cell: interval},
  {title: "Settings", class: "long wide", cell: (line) => line.how},
  {title: "Of peak", class: "number wide", cell: (line) => !shareOf(line) ? ""
    : `${percent(shareOf(line))} %${readsMemory(line) ? " of bandwidth" : ""}`},
  {title: "Flags", class: "long wide", cell: (line) => join(...warnings(line))},
  {title: "More", class: "", cell: (line) => {
    const button = element("button", {"aria-label": `Details of ${line.shown}, ${line.work}`}, "Details");
    button.onclick = () => { at("facts").replaceChildren(...describe(line)); at("details").showModal(); };
    return button;
  }},
];

// Terms and descriptions of what is known of a line.
function describe(line) {
  const flags = warnings(line).map((flag) =>
    element("div", {}, Object.hasOwn(data.flags, flag) ? `${flag}: ${data.flags[flag]}` : flag));
  const measured = (value, unit) => value && `${figure(value)} ${unit}`;
  const share = (part, of) => part && `${percent(part)} % of this machine's measured ${of}`;
  const isLink = /^https?:\/\//i.test(line.source);
  const facts = {
    Result: result(line), Interval: interval(line), Mean: measured(line.mean, line.per),
    Measured: isPublished(line) ? "by others" : `in ${line.processes} process${line.processes > 1 ? "es" : ""}`,
    Work: join(say(line.workload), line.work), Settings: line.how, Setup: line.all_setup,
    Machine: join(line.machine, say(line.kind)),
    Host: line.kind === "gpu" && line.cpu_name, Clock: join(measured(line.clock_mhz, "MHz"), line.throttle_reasons),
    Versions: line.versions, Date: line.date,
    Step: join(measured(line.step_seconds_median, "s (median)"), measured(line.step_seconds_p95, "s (95th percentile)"),
      measured(line.first_step_seconds, "s (first)")),
    Arithmetic: join(measured(line.tflops, "TFLOP/s"), share(line.of_peak, "peak")),
    "Memory read": join(measured(line.bandwidth, "GB/s"), share(line.of_bandwidth, "bandwidth")),
    "Peak memory": line.peak_memory_bytes && `${figure(line.peak_memory_bytes / 1e9, 3)} GB`,
    Energy: join(measured(line.power_watts, "W"), measured(line.joules_per_item, "J per item")),
    Note: line.note, Source: isLink ? element("a", {href: line.source, rel: "noreferrer"}, line.source) : line.source,
    Flags: flags.length ? element("div", {}, ...flags) : "",
  };
  return Object.entries(facts).filter(([, fact]) => fact).flatMap(([name, fact]) =>
    [element("dt", {}, name), element("dd", {}, fact)]);
}

// Draw a line's bar with its interval; `most` is as long as the column is wide.
function drawBar(line, most) {
  const part = (value) => `${100 * value / most}%`;
  const bar = element("div", {class: isPublished(line) ? "published" : "own", style: `width: ${part(line.value)}`});
  const ends = `left: ${part(line.low)}; width: ${part(line.high - line.low)}`;
  return element("div", {class: line.disturbed}, bar, ...interval(line) ? [element("div", {class: "interval", style: ends})] : []);
}

// Show a table of lines, with bars if they are of one work.
function showTable(lines, isOneWork) {
  const sound = lines.filter(isSound), most = Math.max(...sound.map((line) => Math.max(line.value, line.high)));
  const columns = COLUMNS.filter((column) => !column.class.includes(isOneWork ? "work" : "bar"));
  const rows = lines.map((line) => {
    line.bar = isOneWork && sound.includes(line) ? drawBar(line, most) : "";
    return element("tr", {}, ...columns.map((column) => element("td", {class: column.class}, column.cell(line))));
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
  const address = readAddress(location.hash), view = choose(lines, address), {chosen} = view, q = address.q ?? "";
  const works = view.works.map(([work, found]) => option(work, `${work} (${unique(found, "shown").length})`));
  if (view.found.length < lines.length) works.unshift(option("", "all that are found"));
  showSelect("work", works, chosen.work);
  for (const name of Object.keys(CHOICES)) {
    const values = view.options[name].map((value) => option(value, say(value)));
    showSelect(name, values.length > 1 ? [option("", "any"), ...values] : [], chosen[name]);
  }
  if (document.activeElement !== at("form").q) at("form").q.value = q;
  showTable(view.lines, Boolean(chosen.work));
  at("count").textContent = `${view.lines.length} of ${lines.length} lines.`;
  at("none").hidden = view.found.length;
  at("heading").textContent = chosen.work
    || join(q && `\u201c${q}\u201d`, ...Object.keys(CHOICES).map((name) => say(chosen[name])));
  document.title = `${at("heading").textContent} - machine-learning speed test`;
}

function start() {
  data = JSON.parse(at("data").textContent);
  lines = readLines(data);
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
