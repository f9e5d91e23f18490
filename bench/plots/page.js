// The script of results/index.html: shows what the address names, and changes the address with every choice.
// Text from results becomes text nodes only, never HTML.
"use strict";

// --- What is shown: functions without a page, which tests/plots/test_html.py runs. ---

const SAME = 0.01; // as in bench/records/verdict.py
const TELLS_NOTHING = [0.5, 2]; // as in compare_results.py
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
const say = (text, words = WORDS) => Object.hasOwn(words, text) ? words[text] : text;
const collator = new Intl.Collator("en", {numeric: true});
const place = (workload) => ORDER.includes(workload) ? ORDER.indexOf(workload) : ORDER.length;

function readLines(data) {
  const readers = Object.entries(data.lines).map(([name, {each, of, at}]) => [
    name, each ? (i) => each[i] : (i) => of[at ? at[i] : 0],
  ]);
  return Array.from({length: data.count}, (_, i) => Object.fromEntries(readers.map(([name, read]) => [name, read(i)])));
}

const isPublished = (line) => line.source !== "";
const isSound = (line) => line.value > 0 && (line.status === "" || line.status === "interrupted")
  && !line.flags.includes("implausible");

// The highest value of each combination of these fields, the highest first.
function bestOf(lines, key) {
  const seen = new Set();
  const isNew = (text) => !seen.has(text) && seen.add(text);
  return lines.filter(isSound).sort((a, b) => b.value - a.value).filter((line) => isNew(JSON.stringify(key(line))));
}

// The value that most machines have, own ones first.
function usual(lines, name) {
  const found = new Map();
  for (const line of lines) {
    if (!found.has(line[name])) found.set(line[name], {own: 0, machines: new Set()});
    const of = found.get(line[name]);
    of.own ||= isPublished(line) ? 0 : 1;
    of.machines.add(line.machine);
  }
  const rank = ([, of]) => of.own * 1e6 + of.machines.size;
  return [...found].sort((a, b) => rank(b) - rank(a))[0]?.[0] ?? "";
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

function verdict(low, high) {
  if (low === null || high === null) return "cannot tell";
  if (low >= 1 - SAME && high <= 1 + SAME) return "same";
  if (low > 1) return "faster";
  return high < 1 ? "slower" : "cannot tell";
}

// The lines of two machines with equal work, as `make compare` merges them.
function compareMachines(lines, a, b) {
  const others = new Map(lines.filter((line) => line.machine === b && line.compared).map((line) => [line.work, line]));
  const ours = lines.filter((line) => line.machine === a && line.compared && others.has(line.work));
  return ours.map((one) => {
    const other = others.get(one.work);
    const isKnown = one.low !== null && other.low !== null;
    // A line with one process is less sure than its own interval says.
    const spread = one.spread * other.spread;
    const low = isKnown ? other.low / one.high / spread : null, high = isKnown ? other.high / one.low * spread : null;
    return {...one, a: one, b: other, ratio: other.value / one.value, low, high, verdict: verdict(low, high)};
  });
}

// The versions and setups of one side of such lines that the other side lacks, in words.
function onlyIn(both, side, other) {
  const words = (name) => new Set(both.flatMap((line) => [line[name].versions, line[name].all_setup].join(", ").split(", ")));
  const others = words(other);
  return [...words(side)].filter((each) => each && !others.has(each)).sort().join(", ");
}

const readAddress = (hash) => Object.fromEntries(new URLSearchParams(hash.replace(/^#/, "")));
const writeAddress = (address) => "#" + new URLSearchParams(address);

function figure(value, digits = 4) {
  if (value === null || value === undefined) return "";
  const rounded = Number(value.toPrecision(digits));
  return rounded >= 1e9 ? rounded.toExponential() : rounded >= 1e4 ? rounded.toLocaleString("en") : String(rounded);
}

function interval(line) {
  return line.low === null ? "" : `${figure(line.low)} to ${figure(line.high)}`;
}

function ratioInterval(line) {
  const tellsNothing = line.low < TELLS_NOTHING[0] && line.high > TELLS_NOTHING[1];
  return line.low === null || tellsNothing ? "" : `${line.low.toFixed(3)} to ${line.high.toFixed(3)}`;
}

const join = (...parts) => parts.filter(Boolean).join(", ");
const batch = (line) => line.batch_size && `batch ${line.batch_size}`;
const workOf = (line) => join(line.model, line.phase, line.scope === "device" ? "" : say(line.scope),
  isPublished(line) ? line.size : line.size.replace(" if stated", ""));
const settingsOf = (line) => join(line.precision, batch(line), line.settings);
const result = (line) => line.value > 0 ? `${figure(line.value)} ${line.per}` : line.stated;
const warnings = (line) => `${line.flags} ${line.status}`.trim();

// Positions of the lines of an axis.
function ticks(least, most, isLog) {
  const power = 10 ** Math.floor(Math.log10(isLog ? least : most / 2));
  const parts = isLog ? (most < 100 * least ? [1, 2, 5] : [1]) : [];
  if (isLog) {
    const decades = Array.from({length: 20}, (_, i) => power * 10 ** i);
    return decades.flatMap((decade) => parts.map((part) => part * decade)).filter((x) => x >= least && x <= most);
  }
  const step = [1, 2, 5, 10].map((part) => part * power).find((each) => most / each <= 5) ?? 10 * power;
  return Array.from({length: Math.floor(most / step) + 1}, (_, i) => Number((i * step).toPrecision(3)));
}

// --- The page. ---

const SVG = ["svg", "g", "rect", "line", "text", "circle", "title"];
const STEP = 200; // lines of a table until more are asked for
let data, lines, shown;

// Make an element; attributes beginning with "on" are handlers, strings become text.
function element(tag, attributes = {}, ...children) {
  const made = SVG.includes(tag) ? document.createElementNS("http://www.w3.org/2000/svg", tag)
    : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

const at = (id) => document.getElementById(id);
const link = (text, address) => element("a", {href: writeAddress(address)}, text);

function sourceOf(line) {
  if (!/^https?:\/\//i.test(line.source)) return line.source;
  return element("a", {href: line.source, rel: "noopener noreferrer", target: "_blank"}, line.source);
}

// Columns of tables: title, text or node of a line, value to sort by, class.
const fullWork = (line) => join(line.workload === line.model ? "" : line.workload, workOf(line));
const WORK = {title: "Work", cell: fullWork, class: "long"};
const MACHINE = {
  title: "Machine", value: (line) => line.machine, class: "long",
  cell: (line) => element("span", {}, link(line.machine, {machine: line.machine}),
    element("span", {class: "tag"}, isPublished(line) ? " published" : "")),
};
const RESULTS = {
  value: {title: "Result", cell: result, value: (line) => line.value ?? 0, class: "number"},
  interval: {title: "Interval", cell: interval, value: (line) => (line.high - line.low) / line.value || 0,
    class: "number wide"},
  runs: {title: "Processes", cell: (line) => isPublished(line) ? "" : String(line.rows), value: (line) => line.rows,
    class: "number wide"},
  settings: {title: "Settings", cell: settingsOf, class: "long wide"},
  on: {title: "On", cell: (line) => say(line.kind), class: "wide"},
  framework: {title: "Framework", cell: (line) => line.framework, class: "long wide"},
  tflops: {title: "TFLOP/s", cell: (line) => line.per === "TFLOP/s" ? "" : figure(line.tflops, 3),
    value: (line) => line.tflops ?? 0, class: "number wide"},
  peak: {title: "of peak", cell: (line) => line.of_peak === null ? "" : `${(100 * line.of_peak).toFixed(0)} %`,
    value: (line) => line.of_peak ?? 0, class: "number wide"},
  date: {title: "Date", cell: (line) => line.date, class: "date wide"},
  flags: {title: "Flags", cell: (line) => warnings(line).replaceAll(" ", ", "), class: "long wide"},
};
const COMPARED = {
  work: {title: "Work", cell: (line) => join(fullWork(line), settingsOf(line)), class: "long"},
  framework: {title: "Framework", cell: (line) => line.framework, class: "long wide"},
  a: {title: "A", cell: (line) => figure(line.a.value), value: (line) => line.a.value, class: "number wide"},
  b: {title: "B", cell: (line) => result(line.b), value: (line) => line.b.value, class: "number wide"},
  ratio: {title: "B / A", cell: (line) => line.ratio.toFixed(3), value: (line) => line.ratio, class: "number"},
  interval: {title: "Interval", cell: ratioInterval, value: (line) => line.high - line.low, class: "number wide"},
  verdict: {title: "B is", cell: (line) => element("span", {class: line.verdict}, line.verdict),
    value: (line) => line.verdict},
  flags: {title: "Flags", cell: (line) => [line.a, line.b].map((each, i) => warnings(each) &&
    `${"AB"[i]}: ${warnings(each).replaceAll(" ", ", ")}`).filter(Boolean).join("; "), class: "long wide"},
};

function describe(line) {
  const flags = warnings(line).split(" ").filter(Boolean).map((flag) => element("div", {},
    flag + (Object.hasOwn(data.flags, flag) ? `: ${data.flags[flag]}` : "")));
  const seconds = (value) => value && `${figure(value)} s`;
  const facts = {
    Result: result(line), Interval: interval(line),
    Measured: isPublished(line) ? "by others" : line.rows > 1 ? `confirmed by ${line.rows} processes` : "in one process",
    Work: join(line.workload, workOf(line)), Settings: settingsOf(line), Setup: line.all_setup,
    Device: join(line.device_name, say(line.kind)), Versions: line.versions, Date: line.date,
    "Step, median": seconds(line.step_seconds_median), "Step, 95th percentile": seconds(line.step_seconds_p95),
    "First step": seconds(line.first_step_seconds),
    "Arithmetic": line.tflops && `${figure(line.tflops)} TFLOP/s` + (line.of_peak ?
      `, ${(100 * line.of_peak).toFixed(1)} % of this machine's measured peak` : ""),
    "Memory read": line.bandwidth && `${figure(line.bandwidth)} GB/s` + (line.of_bandwidth ?
      `, ${(100 * line.of_bandwidth).toFixed(1)} % of this machine's measured bandwidth` : ""),
    "Peak memory": line.peak_memory_bytes && `${figure(line.peak_memory_bytes / 1e9, 3)} GB`,
    Power: line.power_watts && `${figure(line.power_watts)} W`,
    Energy: line.joules_per_item && `${figure(line.joules_per_item)} J per item`,
    Note: line.note, Source: isPublished(line) ? sourceOf(line) : "",
    Flags: flags.length ? element("div", {}, ...flags) : "",
  };
  const known = Object.entries(facts).filter(([, fact]) => fact);
  return element("dl", {}, ...known.flatMap(([name, fact]) => [element("dt", {}, name), element("dd", {}, fact)]));
}

// Show a table of lines, sorted as the address says; describeLine() returns what a line's button shows.
function showTable(found, columns, address, describeLine) {
  const [, descends, by] = /^(-?)(.*)$/.exec(address.sort ?? "");
  if (Object.hasOwn(columns, by)) {
    const value = columns[by].value ?? columns[by].cell;
    const compare = (a, b) => typeof a === "number" ? a - b : collator.compare(a, b);
    found = [...found].sort((a, b) => (descends ? -1 : 1) * compare(value(a), value(b)));
  }
  const focused = document.activeElement?.dataset?.sort;
  const head = Object.entries(columns).map(([name, column]) => {
    const isNumber = column.class?.includes("number");
    const next = by === name ? (descends ? "" : "-") : (isNumber ? "-" : "");
    const sort = () => location.replace(writeAddress({...address, sort: next + name}));
    return element("th", {scope: "col", class: column.class ?? null,
      "aria-sort": by !== name ? null : descends ? "descending" : "ascending"},
      element("button", {type: "button", "data-sort": name, onclick: sort}, column.title));
  });
  const body = element("tbody", {}, ...found.slice(0, shown).map((line) => {
    const toggle = ({currentTarget: button}) => {
      const isOpen = button.getAttribute("aria-expanded") === "true";
      button.setAttribute("aria-expanded", String(!isOpen));
      if (isOpen) row.nextSibling.remove();
      else row.after(element("tr", {}, element("td", {colspan: head.length}, describeLine(line))));
    };
    const row = element("tr", {}, ...Object.values(columns).map((column) =>
      element("td", {class: column.class ?? null}, column.cell(line))),
      element("td", {}, element("button", {type: "button", "aria-expanded": "false", onclick: toggle,
        "aria-label": `Details of ${line.machine}, ${workOf(line)}`}, "Details")));
    return row;
  }));
  head.push(element("th", {scope: "col"}, "More"));
  at("table").replaceChildren(element("thead", {}, element("tr", {}, ...head)), body);
  at("table").hidden = !found.length;
  at("table").querySelector(`[data-sort="${CSS.escape(focused ?? "")}"]`)?.focus();
  at("more").hidden = found.length <= shown;
  at("more").textContent = `Show ${STEP} more lines of ${found.length}`;
  at("more").onclick = () => { shown += STEP; render(); };
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
  const cut = (text, size) => text.length * size > (isNarrow ? width : left - 10)
    ? text.slice(0, (isNarrow ? width : left - 10) / size - 1) + "\u2026" : text;
  const axis = ticks(least, most, isLog).map((tick) => element("g", {},
    element("line", {class: "grid", x1: x(tick), x2: x(tick), y1: 0, y2: bottom}),
    element("text", {class: "note", x: x(tick), y: bottom + 12, "text-anchor": "middle"}, figure(tick))));
  const drawn = bars.map((line, i) => {
    const top = i * row, y = top + (isNarrow ? 40 : row / 2), mark = isPublished(line) ? "published" : "own";
    const note = join(!chosen.framework && line.framework, !chosen.kind && say(line.kind),
      !chosen.precision && line.precision, !chosen.batch_size && batch(line), line.settings);
    const end = x(Math.max(line.value, line.high ?? 0)) + 8;
    return element("g", {}, element("title", {}, join(line.machine, note, result(line), interval(line))),
      element("text", {x: 0, y: top + 9}, cut(line.machine, 7.2)),
      element("text", {class: "note", x: 0, y: top + 25}, cut(note, 6)),
      isLog ? element("circle", {class: mark, cx: x(line.value), cy: y, r: 5.5})
        : element("rect", {class: mark, x: left, y: y - 7, width: x(line.value) - left, height: 14}),
      ...(line.low === null ? [] : [[line.low, line.high, 0], [line.low, line.low, 4], [line.high, line.high, 4]])
        .map(([x1, x2, dy]) => element("line", {class: "interval", x1: x(x1), x2: x(x2), y1: y - dy, y2: y + dy})),
      element("text", {x: end, y}, figure(line.value)));
  });
  const of = bars.length < found.length ? ` (${bars.length} of ${found.length} machines)` : "";
  const words = `${bars[0]?.per}, the best of each machine${of}${isLog ? "; logarithmic axis" : ""}`;
  const label = `Bars of the table below: ${words}`;
  at("bars").replaceChildren(element("svg", {width, height: bottom + 40, role: "img", "aria-label": label}, ...axis,
    ...drawn, element("text", {class: "note", x: left, y: bottom + 30}, words)));
}

// A labelled choice that changes one entry of the address; a select keeps its element, and so the focus.
function showSelect(name, label, values, value, change) {
  const id = `choice-${name}`;
  if (!at(id)) at("choices").append(element("label", {}, label, element("select", {id})));
  const none = REQUIRED.includes(name) ? "usual" : "any";
  const options = values.map((each) => element("option", {value: each}, say(each) || none));
  at(id).replaceChildren(...options);
  at(id).value = value;
  at(id).onchange = () => { location.hash = writeAddress(change(at(id).value)); };
  at(id).parentNode.hidden = values.length < 2;
}

function showFilter(address) {
  if (!at("filter")) at("choices").append(element("label", {}, "Filter the table", element("input", {id: "filter",
    type: "search", placeholder: "m1 bfloat16 drift", autocomplete: "off"})));
  if (document.activeElement !== at("filter")) at("filter").value = address.q ?? "";
  at("filter").oninput = () => location.replace(writeAddress({...readAddress(location.hash), q: at("filter").value}));
}

function textOf(line) {
  return line.text ??= Object.values(line).filter((cell) => typeof cell === "string").join(" ").toLowerCase();
}

function filter(found, address) {
  const words = (address.q ?? "").toLowerCase().split(" ").filter(Boolean);
  return found.filter((line) => words.every((word) => textOf(line).includes(word)));
}

function showResults(address) {
  const {chosen, options, lines: found} = choose(lines, address);
  const kept = Object.fromEntries(Object.entries(address).filter(([name]) => ["rows", "sort", "q"].includes(name)));
  for (const [name, label] of Object.entries(CHOICES)) {
    showSelect(name, label, options[name], chosen[name], (value) => {
      const next = choose(lines, {...chosen, [name]: value});
      const said = Object.entries(next.chosen).filter(([each, to]) => next.options[each].length > 1
        && (to !== "" || REQUIRED.includes(each)));
      return {...Object.fromEntries(said), ...kept};
    });
  }
  const asked = ["best", "work", "all"].includes(address.rows) ? address.rows : "best";
  showSelect("rows", "Lines of the table", ["best", "work", "all"], asked, (value) => ({...address, rows: value}));
  ["best of each machine", "all of this choice", "everything"].forEach((text, i) => {
    at("choice-rows").options[i].textContent = text;
  });
  showFilter(address);
  const best = bestOf(found, (line) => [line.machine, isPublished(line)]);
  drawBars(best, chosen);
  const listed = filter({best, work: found, all: lines}[asked], address);
  showTable(listed, {machine: MACHINE, ...(asked === "all" ? {work: WORK} : {}), ...RESULTS}, address, describe);
  at("count").textContent = `${listed.length} of ${lines.length} lines`;
  return join(...["model", "phase", "size", "precision"].map((name) => chosen[name]));
}

function showCompare(address) {
  const machines = Object.keys(data.machines);
  const own = [...new Set(lines.filter((line) => !isPublished(line)).map((line) => line.machine))].sort();
  const a = machines.includes(address.a) ? address.a : own[0] ?? machines[0];
  const b = machines.includes(address.b) ? address.b : [...own, ...machines].find((name) => name !== a);
  showSelect("a", "A", machines, a, (value) => ({a: value, b}));
  showSelect("b", "B", machines, b, (value) => ({a, b: value}));
  showFilter(address);
  const both = compareMachines(lines, a, b), listed = filter(both, address);
  const describeBoth = (line) => element("div", {}, "A", describe(line.a), "B", describe(line.b));
  showTable(listed, COMPARED, {...address, a, b}, describeBoth);
  const mean = Math.exp(both.reduce((sum, line) => sum + Math.log(line.ratio), 0) / both.length);
  const unsure = both.filter((line) => line.verdict === "cannot tell").length;
  const methods = both.filter((line) => line.a.method_version !== line.b.method_version).length;
  const found = `${listed.length} of ${both.length} lines; geometric mean of all ratios: ${mean.toFixed(3)}`;
  at("count").textContent = both.length ? found : "no work in A and B has equal settings";
  at("about").textContent = "A ratio above 1 means that B is faster. The verdicts are those of make compare.";
  const remarks = [
    unsure && `cannot tell (${unsure} of ${both.length}): the intervals of A and B overlap or are unknown`,
    methods && `${methods} of ${both.length} lines compare different methods (method_version): measure again`,
    ...[["a", "b"], ["b", "a"]].map(([side, other]) => {
      const words = onlyIn(both, side, other);
      return words && `versions and setup of ${side.toUpperCase()} only: ${words}`;
    }),
    ...[[a, "A"], [b, "B"]].map(([machine, side]) => {
      const of = lines.filter((line) => line.machine === machine && line.compared).length - both.length;
      return of > 0 && `only in ${side}: ${of} more lines of other work or settings`;
    }),
  ];
  at("remarks").append(...remarks.filter(Boolean).map((text) => element("li", {}, text)));
  return `${a} (A) and ${b} (B)`;
}

function showMachine(address) {
  const machines = Object.keys(data.machines);
  const machine = machines.includes(address.machine) ? address.machine
    : lines.find((line) => !isPublished(line))?.machine ?? machines[0];
  showSelect("machine", "Machine", machines, machine, (value) => ({machine: value}));
  showFilter(address);
  const {about, limits, cards} = data.machines[machine] ?? {about: "", limits: [], cards: {}};
  at("about").replaceChildren(about, " ", link("Compare with another machine", {a: machine, b: ""}));
  for (const [framework, href] of Object.entries(cards)) at("about").append(" ", element("a", {href}, `Card of ${framework}`));
  at("limits").append(...limits.map(([what, how, value]) => element("li", {}, `${what}: ${value} (${how})`)));
  const found = lines.filter((line) => line.machine === machine);
  const best = bestOf(found, (line) => [line.framework, line.kind, ...REQUIRED.map((name) => line[name])]);
  best.sort((x, y) => place(x.workload) - place(y.workload) || collator.compare(WORK.cell(x), WORK.cell(y)));
  const listed = filter(best, address);
  showTable(listed, {work: WORK, ...RESULTS}, {...address, machine}, describe);
  at("count").textContent = `The best of each work: ${listed.length} of ${best.length} lines, from ${found.length}`;
  return machine;
}

function render() {
  const address = readAddress(location.hash);
  const view = "machine" in address ? "machine" : "a" in address || "b" in address ? "compare" : "results";
  const isOther = view !== at("choices").dataset.view;
  if (isOther) at("choices").replaceChildren();
  at("choices").dataset.view = view;
  for (const id of ["about", "limits", "remarks", "count"]) at(id).replaceChildren();
  at("picture").hidden = view !== "results";
  for (const item of document.querySelectorAll("nav a")) {
    if (item.dataset.view === view) item.setAttribute("aria-current", "page");
    else item.removeAttribute("aria-current");
  }
  const title = {results: showResults, compare: showCompare, machine: showMachine}[view](address);
  at("heading").textContent = title;
  document.title = `${title} - machine-learning speed test`;
  // After a link inside the old view, the reader goes on at the new one.
  if (isOther && lines.wereShown && document.activeElement === document.body) at("heading").focus();
  lines.wereShown = true;
}

function start() {
  data = JSON.parse(at("data").textContent);
  lines = readLines(data);
  shown = STEP;
  for (const [flag, words] of Object.entries(data.flags)) {
    at("flags").append(element("dt", {}, flag), element("dd", {}, words));
  }
  window.addEventListener("hashchange", () => { shown = STEP; render(); });
  let width = window.innerWidth; // a phone's browser also sends this event if its bars move
  window.addEventListener("resize", () => {
    if (width !== window.innerWidth) render();
    width = window.innerWidth;
  });
  render();
}

if (typeof document !== "undefined") start();
