// The script of results/index.html: shows what the address names, and changes the address with every choice.
// Text from results becomes text nodes only, never HTML.
"use strict";

// --- What is shown: functions without a page, which tests/plots/test_html.py runs. ---

const LOG_FROM = 20; // as in bench/plots/draw.py
const MOST_BARS = 30;
// In this order: the values of each depend on those before. One of the first five is always chosen.
const CHOICES = {
  workload: "Workload", model: "Model", phase: "Phase", scope: "Measured", size: "Input size",
  precision: "Precision", batch_size: "Batch size", framework: "Framework", kind: "Device",
};
const ORDER = ["image", "mlp", "transformer", "llm", "matmul", "convolution", "bandwidth"]; // others come last
const REQUIRED = ["workload", "model", "phase", "scope", "size"];
const WORDS = {
  device: "the model, on resident batches", input: "the input pipeline", end_to_end: "model and input together",
  epoch: "whole epochs", cpu: "CPU", gpu: "GPU",
};
const say = (text) => Object.hasOwn(WORDS, text) ? WORDS[text] : text;
const collator = new Intl.Collator("en", {numeric: true});
const place = (workload) => ORDER.includes(workload) ? ORDER.indexOf(workload) : ORDER.length;

const readLines = (data) => data.lines.map((cells) => ({
  ...Object.fromEntries(cells.map((cell, i) => [data.columns[i], cell])),
  text: cells.filter((cell) => typeof cell === "string").join(" ").toLowerCase(), // for the filter
}));

const isPublished = (line) => line.source !== "";
const isSound = (line) => line.value > 0 && line.status === "" && !line.flags.includes("implausible");

// The highest value of each machine, the highest first.
function bestOf(lines) {
  const seen = new Set();
  const isNew = (text) => !seen.has(text) && seen.add(text);
  const sorted = lines.filter(isSound).sort((a, b) => b.value - a.value);
  return sorted.filter((line) => isNew(`${isPublished(line)} ${line.machine}`));
}

// The value that most machines have, of those of own lines if there are any.
function usual(lines, name) {
  const machines = new Map();
  const own = new Set(lines.filter((line) => !isPublished(line)).map((line) => line[name]));
  for (const line of lines.filter((line) => own.has(line[name]) || !own.size)) {
    machines.set(line[name], (machines.get(line[name]) ?? new Set()).add(line.machine));
  }
  return [...machines].sort(([, a], [, b]) => b.size - a.size)[0]?.[0] ?? "";
}

// What the address asks for where it exists: {chosen, options, lines}.
function choose(lines, address) {
  const chosen = {}, options = {};
  for (const name of Object.keys(CHOICES)) {
    const values = [...new Set(lines.map((line) => line[name]))];
    values.sort((a, b) => name === "workload" ? place(a) - place(b) : collator.compare(a, b));
    // TFLOP/s of an operator mean little without the precision.
    const isRequired = REQUIRED.includes(name) || (name === "precision" && chosen.phase === "");
    const usually = name === "workload" ? values[0] ?? "" : isRequired ? usual(lines, name) : "";
    chosen[name] = values.includes(address[name]) ? address[name] : usually;
    options[name] = isRequired ? values : ["", ...values.filter((value) => value !== "")];
    if (isRequired || chosen[name] !== "") lines = lines.filter((line) => line[name] === chosen[name]);
  }
  return {chosen, options, lines};
}

const readAddress = (hash) => Object.fromEntries(new URLSearchParams(hash.replace(/^#/, "")));
const writeAddress = (address) => "#" + new URLSearchParams(address);

function figure(value, digits = 4) {
  if (value === null) return "";
  const rounded = Number(value.toPrecision(digits));
  return rounded >= 1e4 ? rounded.toLocaleString("en") : String(rounded);
}

const join = (...parts) => parts.filter(Boolean).join(", ");
const interval = (line) => line.low === null || line.high === null ? "" : `${figure(line.low)} to ${figure(line.high)}`;
const batch = (line) => line.batch_size && `batch ${line.batch_size}`;
const workOf = (line) => join(line.workload === line.model ? "" : line.workload, line.model, line.phase,
  line.scope === "device" ? "" : say(line.scope), line.size);
const settingsOf = (line) => join(line.precision, batch(line), line.settings);
const result = (line) => line.value > 0 ? `${figure(line.value)} ${line.per}` : line.stated;
const warnings = (line) => `${line.flags} ${line.status}`.trim();

// Positions of the lines of an axis.
function ticks(least, most, isLog) {
  const power = 10 ** Math.floor(Math.log10(isLog ? least : most / 2));
  if (isLog) {
    const parts = most < 100 * least ? [1, 2, 5] : [1];
    const decades = Array.from({length: 20}, (_, i) => power * 10 ** i);
    return decades.flatMap((decade) => parts.map((part) => part * decade)).filter((x) => x >= least && x <= most);
  }
  const step = [1, 2, 5, 10].map((part) => part * power).find((each) => most / each <= 5) ?? 10 * power;
  return Array.from({length: Math.floor(most / step) + 1}, (_, i) => Number((i * step).toPrecision(3)));
}

// --- The page. ---

const SVG = ["svg", "g", "rect", "line", "text", "circle", "title"];
const LISTS = {best: "best of each machine", work: "all of this choice", all: "everything"};
const opened = new Set(); // lines whose details are shown, also after sorting and filtering
let data, lines, picture;

// Make an element; attributes beginning with "on" are handlers, strings become text.
function element(tag, attributes = {}, ...children) {
  const made = document.createElementNS(`http://www.w3.org/${SVG.includes(tag) ? "2000/svg" : "1999/xhtml"}`, tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

const at = (id) => document.getElementById(id);

const sourceOf = ({source}) => /^https?:\/\//i.test(source)
  ? element("a", {href: source, rel: "noopener noreferrer", target: "_blank"}, source) : source;

// Columns of the table: title, text or node of a line, value to sort by, class.
const COLUMNS = {
  machine: {title: "Device", value: (line) => line.shown, class: "long", cell: (line) =>
    element("span", {}, line.shown, element("span", {class: "tag"}, isPublished(line) ? " published" : ""))},
  work: {title: "Work", cell: workOf, class: "long"},
  value: {title: "Result", cell: result, value: (line) => line.value ?? 0, class: "number"},
  interval: {title: "Interval", cell: interval, value: (line) => (line.high - line.low) / line.value || 0,
    class: "number wide"},
  settings: {title: "Settings", cell: settingsOf, class: "long wide"},
  on: {title: "On", cell: (line) => say(line.kind), class: "wide"},
  framework: {title: "Framework", cell: (line) => line.framework, class: "long wide"},
  tflops: {title: "TFLOP/s", cell: (line) => line.per === "TFLOP/s" ? "" : figure(line.tflops, 3),
    value: (line) => line.tflops ?? 0, class: "number wide"},
  peak: {title: "Of peak", cell: (line) => line.of_peak ? `${(100 * line.of_peak).toFixed(0)} %` : "",
    value: (line) => line.of_peak ?? 0, class: "number wide"},
  flags: {title: "Flags", cell: (line) => warnings(line).replaceAll(" ", ", "), class: "long wide"},
};

function describe(line) {
  const flags = warnings(line).split(" ").filter(Boolean).map((flag) =>
    element("div", {}, Object.hasOwn(data.flags, flag) ? `${flag}: ${data.flags[flag]}` : flag));
  const measured = (value, unit) => value && `${figure(value)} ${unit}`;
  const share = (part, of) => part && `${(100 * part).toFixed(1)} % of this machine's measured ${of}`;
  const facts = {
    Result: result(line), Interval: interval(line),
    Measured: isPublished(line) ? "by others" : line.processes > 1 ? `in ${line.processes} processes` : "in one process",
    Work: workOf(line), Settings: settingsOf(line), Setup: line.all_setup, Machine: join(line.machine, say(line.kind)),
    "Rows from": isPublished(line) ? "" : `${line.computers} computer${line.computers > 1 ? "s" : ""} of this name`,
    Versions: line.versions, Date: line.date,
    "Step, median": measured(line.step_seconds_median, "s"),
    "Step, 95th percentile": measured(line.step_seconds_p95, "s"),
    "First step": measured(line.first_step_seconds, "s"),
    Arithmetic: join(measured(line.tflops, "TFLOP/s"), share(line.of_peak, "peak")),
    "Memory read": join(measured(line.bandwidth, "GB/s"), share(line.of_bandwidth, "bandwidth")),
    "Peak memory": line.peak_memory_bytes && `${figure(line.peak_memory_bytes / 1e9, 3)} GB`,
    Energy: join(measured(line.power_watts, "W"), measured(line.joules_per_item, "J per item")),
    Note: line.note, Source: sourceOf(line), Flags: flags.length ? element("div", {}, ...flags) : "",
  };
  const known = Object.entries(facts).filter(([, fact]) => fact);
  return element("dl", {}, ...known.flatMap(([name, fact]) => [element("dt", {}, name), element("dd", {}, fact)]));
}

// Show a table of lines, sorted as the address says; the button of a line shows its details.
function showTable(found, columns, address) {
  const [, descends, by] = /^(-?)(.*)$/.exec(address.sort ?? "");
  if (Object.hasOwn(columns, by)) {
    const value = columns[by].value ?? columns[by].cell;
    const compare = (a, b) => typeof a === "number" ? a - b : collator.compare(a, b);
    found = [...found].sort((a, b) => (descends ? -1 : 1) * compare(value(a), value(b)));
  }
  const focused = document.activeElement?.dataset?.sort;
  const head = Object.entries(columns).map(([name, column]) => {
    const next = by === name ? (descends ? "" : "-") : (column.class.includes("number") ? "-" : "");
    const sort = () => location.replace(writeAddress({...address, sort: next + name}));
    return element("th", {scope: "col", class: column.class,
      "aria-sort": by !== name ? null : descends ? "descending" : "ascending"},
      element("button", {type: "button", "data-sort": name, onclick: sort}, column.title));
  });
  head.push(element("th", {scope: "col"}, "More"));
  const body = element("tbody", {}, ...found.flatMap((line) => {
    const toggle = () => {
      if (!opened.delete(line)) opened.add(line);
      show();
    };
    const button = element("button", {type: "button", onclick: toggle,
      "aria-label": `Details of ${line.shown}, ${workOf(line)}`}, "Details");
    const details = element("td", {colspan: head.length}), below = element("tr", {}, details);
    const show = () => {
      const isOpen = opened.has(line);
      button.setAttribute("aria-expanded", String(isOpen));
      details.replaceChildren(...isOpen ? [describe(line)] : []);
      below.hidden = !isOpen;
    };
    show();
    return [element("tr", {}, ...Object.values(columns).map((column) =>
      element("td", {class: column.class}, column.cell(line))), element("td", {}, button)), below];
  }));
  at("table").replaceChildren(element("thead", {}, element("tr", {}, ...head)), body);
  at("table").querySelector(`[data-sort="${CSS.escape(focused ?? "")}"]`)?.focus();
}

// Draw a bar for each line; points on a logarithmic axis, which has no zero to begin at.
function drawBars(found, chosen) {
  at("picture").hidden = !found.length;
  const bars = found.filter((line) => !isPublished(line)).concat(found.filter(isPublished)).slice(0, MOST_BARS);
  bars.sort((a, b) => b.value - a.value);
  const width = Math.max(at("bars").clientWidth, 300), isNarrow = width < 640;
  const left = isNarrow ? 4 : 320, right = width - 70, row = isNarrow ? 52 : 36, bottom = bars.length * row;
  const least = Math.min(...bars.map((line) => line.low ?? line.value)) / 1.3;
  const most = Math.max(...bars.map((line) => line.high ?? line.value));
  const isLog = most > LOG_FROM * least * 1.3;
  const part = (value) => isLog ? Math.log(value / least) / Math.log(most / least) : value / most;
  const x = (value) => left + (right - left) * part(value);
  const room = isNarrow ? width : left - 10;
  const cut = (text, size) => text.length * size > room ? text.slice(0, room / size - 1) + "\u2026" : text;
  const axis = ticks(least, most, isLog).map((tick) => element("g", {},
    element("line", {class: "grid", x1: x(tick), x2: x(tick), y1: 0, y2: bottom}),
    element("text", {class: "note", x: x(tick), y: bottom + 12, "text-anchor": "middle"}, figure(tick))));
  const drawn = bars.map((line, i) => {
    const top = i * row, y = top + (isNarrow ? 40 : row / 2), mark = isPublished(line) ? "published" : "own";
    const note = join(!chosen.framework && line.framework, !chosen.kind && say(line.kind),
      !chosen.precision && line.precision, !chosen.batch_size && batch(line), line.settings);
    return element("g", {}, element("title", {}, join(line.shown, note, result(line), interval(line))),
      element("text", {x: 0, y: top + 9}, cut(line.shown, 7.2)),
      element("text", {class: "note", x: 0, y: top + 25}, cut(note, 6)),
      isLog ? element("circle", {class: mark, cx: x(line.value), cy: y, r: 5.5})
        : element("rect", {class: mark, x: left, y: y - 7, width: x(line.value) - left, height: 14}),
      ...(interval(line) ? [[line.low, line.high, 0], [line.low, line.low, 4], [line.high, line.high, 4]] : [])
        .map(([x1, x2, dy]) => element("line", {class: "interval", x1: x(x1), x2: x(x2), y1: y - dy, y2: y + dy})),
      element("text", {x: x(Math.max(line.value, line.high ?? 0)) + 8, y}, figure(line.value)));
  });
  const of = bars.length < found.length ? ` (${bars.length} of ${found.length} machines)` : "";
  const words = `${bars[0]?.per}, the best of each machine${of}${isLog ? "; logarithmic axis" : ""}`;
  const label = `Bars of the table below: ${words}`;
  at("bars").replaceChildren(element("svg", {width, height: bottom + 40, role: "img", "aria-label": label}, ...axis,
    ...drawn, element("text", {class: "note", x: left, y: bottom + 30}, words)));
}

// A labelled choice that changes the address; a select keeps its element, and so the focus.
function showSelect(name, label, options, value, change) {
  const id = `choice-${name}`;
  if (!at(id)) at("filter").parentNode.before(element("label", {}, label, element("select", {id})));
  at(id).replaceChildren(...options.map(([each, text]) => element("option", {value: each}, text)));
  at(id).value = value;
  at(id).onchange = () => { location.hash = writeAddress(change(at(id).value)); };
  at(id).parentNode.hidden = options.length < 2;
}

function render() {
  const address = readAddress(location.hash), {chosen, options, lines: found} = choose(lines, address);
  for (const [name, label] of Object.entries(CHOICES)) {
    const none = REQUIRED.includes(name) ? "usual" : "any";
    showSelect(name, label, options[name].map((each) => [each, say(each) || none]), chosen[name],
      (value) => ({...address, ...choose(lines, {...chosen, [name]: value}).chosen}));
  }
  const asked = Object.hasOwn(LISTS, address.rows ?? "") ? address.rows : "best";
  showSelect("rows", "Lines of the table", Object.entries(LISTS), asked, (rows) => ({...address, rows}));
  if (document.activeElement !== at("filter")) at("filter").value = address.q ?? "";
  const words = (address.q ?? "").toLowerCase().split(" ");
  const best = bestOf(found);
  const listed = {best, work: found, all: lines}[asked].filter((line) =>
    words.every((word) => line.text.includes(word)));
  const {work, ...others} = COLUMNS;
  picture = [best, chosen];
  drawBars(...picture);
  showTable(listed, asked === "all" ? COLUMNS : others, address);
  at("count").textContent = `${listed.length} of ${lines.length} lines`;
  at("heading").textContent = join(...["model", "phase", "size", "precision"].map((name) => chosen[name]));
  document.title = `${at("heading").textContent} - machine-learning speed test`;
}

function start() {
  data = JSON.parse(at("data").textContent);
  lines = readLines(data);
  at("filter").oninput = () => location.replace(
    writeAddress({...readAddress(location.hash), q: at("filter").value}));
  window.addEventListener("hashchange", render);
  render();
  new ResizeObserver(() => drawBars(...picture)).observe(at("bars")); // only the picture depends on the width
}

if (typeof document !== "undefined") start();
