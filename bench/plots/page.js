// The script of results/index.html: shows what the address names, and changes the address with every choice.
// Text from results becomes text nodes only, never HTML.
"use strict";

// --- What is shown: functions without a page, which tests/plots/test_html.py runs. ---

const LOG_FROM = 20; // as in bench/plots/draw.py
const MOST_BARS = 30;
// In this order: the values of each depend on those before. One of the first six is always chosen.
const CHOICES = {
  workload: "Workload", model: "Model", phase: "Phase", scope: "Measured", size: "Input size", weights: "Weights",
  precision: "Precision", batch_size: "Batch size", framework: "Framework", kind: "Device",
};
const REQUIRED = ["workload", "model", "phase", "scope", "size", "weights"];
const BOTH = ["prefill", "decode"]; // shown together until a phase is chosen
const WORDS = {
  device: "the model, on resident batches", input: "the input pipeline", end_to_end: "model and input together",
  epoch: "whole epochs", cpu: "CPU", gpu: "GPU", image: "image classification", mlp: "multilayer perceptrons",
  transformer: "text classification (BERT)", llm: "language models", diffusion: "image generation",
  resnet50: "ResNet-50", mobilenet_v2: "MobileNetV2", "sd-1.5": "Stable Diffusion 1.5",
  training: "training (also fine-tuning)", bfloat16: "bfloat16 (bf16)", float16: "float16 (fp16)",
};
const NOT_SEARCHED = ["source", "note", "cpu_name"]; // they name other devices
const say = (text) => Object.hasOwn(WORDS, text) ? WORDS[text] : text;
const collator = new Intl.Collator("en", {numeric: true});

const readLines = (data) => data.lines.map((cells) => ({
  ...Object.fromEntries(cells.map((cell, i) => [data.columns[i], cell])),
  text: cells.filter((cell, i) => typeof cell === "string" && !NOT_SEARCHED.includes(data.columns[i]))
    .flatMap((cell) => [cell, say(cell)]).join(" ").toLowerCase(),
}));
const search = (lines, text) =>
  lines.filter((line) => text.toLowerCase().split(" ").every((word) => line.text.includes(word)));

const isPublished = (line) => line.source !== "";
const isSound = (line) => line.value > 0 && line.status === "" && !line.flags.includes("implausible");

// {key of a line: the highest line that has it}
const highest = (lines, key) =>
  new Map(lines.filter(isSound).sort((a, b) => a.value - b.value).map((line) => [key(line), line]));
const bestOf = (lines) =>
  [...highest(lines, (line) => `${isPublished(line)} ${line.machine}`).values()].sort((a, b) => b.value - a.value);

// The value that most own machines have a rate for, then most machines; without own lines, most machines.
function usual(lines, name) {
  lines = lines.some(isSound) ? lines.filter(isSound) : lines;
  const own = lines.filter((line) => !isPublished(line));
  const count = (from, value) => new Set(from.filter((line) => line[name] === value).map((line) => line.machine)).size;
  const values = [...new Set((own.length ? own : lines).map((line) => line[name]))];
  return values.sort((a, b) => count(own, b) - count(own, a) || count(lines, b) - count(lines, a))[0] ?? "";
}

// What the address asks for where it exists: {chosen, options, lines}.
function choose(lines, address) {
  const chosen = {}, options = {};
  for (const name of Object.keys(CHOICES)) {
    const values = [...new Set(lines.map((line) => line[name]))];
    if (name !== "workload") values.sort(collator.compare);
    // TFLOP/s of an operator mean little without the precision.
    const isRequired = REQUIRED.includes(name) || (name === "precision" && chosen.phase === "");
    const own = lines.find((line) => isSound(line) && !isPublished(line));
    const first = {workload: own?.workload ?? values[0], scope: values.find((each) => each === "device")}[name];
    const usually = first ?? (isRequired ? usual(lines, name) : "");
    chosen[name] = values.includes(address[name]) ? address[name] : usually;
    options[name] = isRequired ? values : ["", ...values.filter((value) => value !== "")];
    if (isRequired || chosen[name] !== "") lines = lines.filter((line) => line[name] === chosen[name]);
  }
  return {chosen, options, lines};
}

// One view, or one of prefill and one of decode.
function chooseViews(lines, address) {
  const view = choose(lines, address), phases = view.options.phase;
  const isOne = phases.includes(address.phase) || !BOTH.every((phase) => phases.includes(phase));
  return isOne ? [view] : BOTH.map((phase) => choose(lines, {...address, phase}));
}

// The work of two machines with equal settings, side by side; then what only one of them has.
function pairUp(lines, machines) {
  const worksOf = (machine) => highest(lines.filter((line) => line.machine === machine), fullWork);
  const [a, b] = [0, 1].map((side) => worksOf(machines[side]));
  const pairs = [...new Map([...b, ...a])].map(([work, line]) => ({...line, a: a.get(work), b: b.get(work)}));
  return pairs.sort((x, y) => !(x.a && x.b) - !(y.a && y.b) || collator.compare(fullWork(x), fullWork(y)));
}

const readAddress = (hash) => Object.fromEntries(new URLSearchParams(hash.replace(/^#/, "")));
const writeAddress = (address) => "#" + new URLSearchParams(address);

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
const batch = (line) => line.batch_size && `batch ${line.batch_size}`;
const workOf = (line) => join(line.workload === line.model ? "" : line.workload, line.model, line.phase,
  line.scope === "device" ? "" : say(line.scope), line.size, line.weights);
const settingsOf = (line) => join(line.precision, batch(line), line.settings);
// An own peak is the best of its machine, at any size and by any operator.
const isPeak = (line) => line.model === "matmul-peak" && !isPublished(line);
const fullWork = (line) => join(workOf(line), isPeak(line) ? line.precision : settingsOf(line), line.framework);
const result = (line) => line.value > 0 ? `${figure(line.value)} ${line.per}` : line.stated;
const warnings = (line) => `${line.flags} ${line.status}`.trim();

// --- The page. ---

const SVG = ["svg", "g", "rect", "line", "text", "circle", "title"];
const opened = new Set(); // lines whose details are shown, also after sorting and filtering
let data, lines, machines, picture;

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

// A name, with the settings below it if the page is too narrow for a column of them.
const named = (line, ...parts) => element("span", {}, ...parts, element("div", {class: "narrow"}, settingsOf(line)));

// Columns of the table: title, text or node of a line, value to sort by, class.
const COLUMNS = {
  machine: {title: "Device", value: (line) => line.shown, class: "long", cell: (line) =>
    named(line, line.shown, element("span", {class: "tag"}, isPublished(line) ? " (published)" : ""))},
  work: {title: "Work", cell: workOf, class: "long"},
  value: {title: "Result", cell: result, value: (line) => line.value ?? 0, class: "number"},
  interval: {title: "Interval", cell: interval, value: (line) => (line.high - line.low) / line.value || 0,
    class: "number wide"},
  settings: {title: "Settings", cell: settingsOf, class: "long wide"},
  framework: {title: "Framework", cell: (line) => join(line.framework, say(line.kind)), class: "long wide"},
  tflops: {title: "TFLOP/s", cell: (line) => line.per === "TFLOP/s" ? "" : figure(line.tflops, 3),
    value: (line) => line.tflops ?? 0, class: "number wide"},
  peak: {title: "Of peak", cell: (line) => !shareOf(line) ? ""
    : `${percent(shareOf(line))} %${readsMemory(line) ? " of bandwidth" : ""}`,
    value: (line) => shareOf(line) ?? 0, class: "number wide"},
  flags: {title: "Flags", cell: (line) => warnings(line).replaceAll(" ", ", "), class: "long wide"},
};

// Columns of the table of pairUp().
const sideOf = (side, machine) => ({
  title: machines.get(machine), class: "side number", value: (pair) => pair[side]?.value ?? 0,
  cell: ({[side]: line}) => line ? element("span", {}, result(line), element("div", {class: "tag"}, join(interval(line),
    isPublished(line) && "published", warnings(line)))) : "",
});
const ratioOf = ({a, b}) => a && b ? b.value / a.value : 0;
const ratio = {title: "Second / first", class: "number", value: ratioOf,
  cell: (pair) => ratioOf(pair) ? figure(ratioOf(pair), 3) : ""};
const pairColumns = ([a, b]) => ({work: {...COLUMNS.work, cell: fullWork}, a: sideOf("a", a),
  ...b && {b: sideOf("b", b), ratio}});

function describe(line) {
  const flags = warnings(line).split(" ").filter(Boolean).map((flag) =>
    element("div", {}, Object.hasOwn(data.flags, flag) ? `${flag}: ${data.flags[flag]}` : flag));
  const measured = (value, unit) => value && `${figure(value)} ${unit}`;
  const share = (part, of) => part && `${percent(part)} % of this machine's measured ${of}`;
  const isLink = /^https?:\/\//i.test(line.source);
  const facts = {
    Result: result(line), Interval: interval(line), Mean: measured(line.mean, line.per),
    Measured: isPublished(line) ? "by others" : `in ${line.processes} process${line.processes > 1 ? "es" : ""}`,
    Work: workOf(line), Settings: settingsOf(line), Setup: line.all_setup, Machine: join(line.machine, say(line.kind)),
    Host: line.kind === "gpu" && line.cpu_name, Clock: join(measured(line.clock_mhz, "MHz"), line.throttle_reasons),
    "Rows from": isPublished(line) ? "" : `${line.computers} computer${line.computers > 1 ? "s" : ""} of this name`,
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
  const known = Object.entries(facts).filter(([, fact]) => fact);
  return element("dl", {}, ...known.flatMap(([name, fact]) => [element("dt", {}, name), element("dd", {}, fact)]));
}

// Show a table of lines, sorted as the address says; the button of a line shows its details.
function showTable(found, columns, address) {
  const [, descends, by] = /^(-?)(.*)$/.exec(address.sort ?? "-value");
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
  const body = element("tbody", {}, ...found.flatMap((line) => {
    const toggle = () => {
      if (!opened.delete(line)) opened.add(line);
      show();
    };
    const button = element("button", {type: "button", onclick: toggle,
      "aria-label": `Details of ${line.shown}, ${workOf(line)}`}, "Details");
    const details = element("td", {colspan: head.length + 1}), below = element("tr", {}, details);
    const show = () => {
      const isOpen = opened.has(line);
      button.setAttribute("aria-expanded", String(isOpen));
      details.replaceChildren(...isOpen ? [line.a ?? line, line.b].filter(Boolean).map(describe) : []);
      below.hidden = !isOpen;
    };
    show();
    return [element("tr", {}, ...Object.values(columns).map((column) =>
      element("td", {class: column.class}, column.cell(line))), element("td", {}, button)), below];
  }));
  at("table").replaceChildren(element("thead", {}, element("tr", {}, ...head, element("th", {}, "More"))), body);
  at("table").querySelector(`[data-sort="${CSS.escape(focused ?? "")}"]`)?.focus();
}

// Draw a bar for each line; points on a logarithmic axis, which has no zero to begin at.
function drawBars({lines, chosen}) {
  const found = bestOf(lines);
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
  const powers = Array.from({length: 25}, (_, i) => 10 ** (i - 10));
  const axis = powers.filter((tick) => isLog && tick > least && tick < most).map((tick) => element("g", {},
    element("line", {class: "grid", x1: x(tick), x2: x(tick), y1: 0, y2: bottom}),
    element("text", {class: "note", x: x(tick), y: bottom + 12, "text-anchor": "middle"}, figure(tick))));
  const drawn = bars.map((line, i) => {
    const top = i * row, y = top + (isNarrow ? 40 : row / 2), mark = isPublished(line) ? "published" : "own";
    const note = join(!chosen.framework && line.framework, !chosen.kind && say(line.kind),
      !chosen.precision && line.precision, !chosen.batch_size && batch(line), line.settings);
    return element("g", {}, element("title", {}, join(line.shown, note, result(line), interval(line))),
      element("text", {x: 0, y: top + 9}, cut(line.shown, 7.2)),
      element("text", {class: "note", x: 0, y: top + 25}, cut(note, 6.8)),
      isLog ? element("circle", {class: mark, cx: x(line.value), cy: y, r: 5.5})
        : element("rect", {class: mark, x: left, y: y - 7, width: x(line.value) - left, height: 14}),
      ...interval(line) ? [element("line", {class: "interval", x1: x(line.low), x2: x(line.high), y1: y, y2: y})] : [],
      element("text", {x: right + 10, y}, figure(line.value)));
  });
  const of = bars.length < found.length ? `${bars.length} of ${found.length} machines` : "";
  const words = `${join(chosen.phase, chosen.size, bars[0].per)}: the fastest settings of each machine, ` +
    join("not like for like", of, isLog && "logarithmic axis");
  const svg = element("svg", {width, height: bottom + 20, role: "img", "aria-label": words}, ...axis, ...drawn);
  return [svg, element("div", {class: "tag"}, words)];
}

function drawPicture() {
  at("picture").hidden = !picture.length;
  at("bars").replaceChildren(...picture.flatMap(drawBars));
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
  const address = readAddress(location.hash), q = address.q ?? "", matching = search(lines, q);
  const views = chooseViews(...matching.length ? [matching, address] : [lines, {}]);
  const [{chosen}] = views, isBoth = views.length > 1;
  const side = [address.a, address.b].filter((machine) => machines.has(machine)), isSide = side.length > 0;
  for (const [name, label] of Object.entries(CHOICES)) {
    const values = [...new Set(views.flatMap((view) => view.options[name]))];
    if (name === "phase" && BOTH.every((phase) => values.includes(phase))) values.unshift("");
    const none = name === "phase" ? BOTH.join(" and ") : REQUIRED.includes(name) ? "usual" : "any";
    const view = views.find((each) => each.chosen[name] === address[name]) ?? views[0];
    showSelect(name, label, isSide ? [] : values.map((each) => [each, say(each) || none]),
      isBoth && name === "phase" ? "" : view.chosen[name],
      (value) => name === "workload" ? {q, workload: value} : {...address, ...(!isBoth && chosen), [name]: value});
  }
  const any = [["", "any"], ...machines];
  showSelect("a", "Machine", any, side[0] ?? "", (a) => ({...address, a}));
  showSelect("b", "Side by side with", isSide ? any : [], side[1] ?? "", (b) => ({...address, b}));
  if (document.activeElement !== at("filter")) at("filter").value = q;
  picture = isSide || !matching.length ? [] : views.filter((view) => bestOf(view.lines).length);
  drawPicture();
  const {work, ...others} = COLUMNS;
  const listed = isSide ? pairUp(matching, side) : matching.length ? views.flatMap((view) => view.lines) : [];
  showTable(listed, isSide ? pairColumns(side) : isBoth ? COLUMNS : others, address);
  const places = views[0].options.workload.flatMap((workload) => [" ", element("a", {href: writeAddress({q, workload})},
    `${say(workload)} (${matching.filter((line) => line.workload === workload).length})`)]);
  at("count").replaceChildren(`${listed.length} of ${lines.length} lines.`, ...q && matching.length
    ? [` \u201c${q}\u201d is in:`, ...places] : []);
  at("none").hidden = matching.length;
  at("heading").textContent = isSide ? side.map((each) => machines.get(each)).join(" and ")
    : join(say(chosen.model), ...isBoth ? BOTH : [chosen.phase, chosen.size], chosen.weights, chosen.precision,
      chosen.scope !== "device" && say(chosen.scope));
  document.title = `${at("heading").textContent} - machine-learning speed test`;
}

// Show the table as Markdown, selected, and copy it if the browser allows it.
function copy() {
  const cells = (row) => [...row.cells].slice(0, -1).map((cell) => cell.innerText
    .trim().replace(/\s*\n\s*/g, ", ").replace(/[|\s]+/g, " "));
  const [head, ...rows] = [...at("table").rows].filter((row) => row.cells.length > 1).map(cells);
  at("markdown").hidden = false;
  at("markdown").value = [head, head.map(() => "---"), ...rows].map((row) => `| ${row.join(" | ")} |\n`).join("");
  at("markdown").select();
  document.execCommand("copy");
}

function start() {
  data = JSON.parse(at("data").textContent);
  lines = readLines(data);
  machines = new Map(lines.map((line) => [line.machine, line.shown]).sort(([, a], [, b]) => collator.compare(a, b)));
  at("copy").onclick = copy;
  at("filter").oninput = () => location.replace(
    writeAddress({...readAddress(location.hash), q: at("filter").value}));
  window.addEventListener("hashchange", render);
  render();
  new ResizeObserver(drawPicture).observe(at("bars")); // only the picture depends on the width
}

if (typeof document !== "undefined") start();
