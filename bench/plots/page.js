// The script of results/index.html: shows what the address names, and changes the address with every choice.
// Text from results becomes text nodes only, never HTML.
"use strict";

// --- What is shown: functions without a page, which tests/plots/test_html.py runs. ---

const LOG_FROM = 20; // as in bench/plots/draw.py
const MOST_BARS = 30;
// In this order: the values of each depend on those before.
const CHOICES = {workload: "Workload", model: "Model", phase: "Phase", scope: "Measured", precision: "Precision",
  batch_size: "Batch size", framework: "Framework", kind: "Device"};
const NOT_SEARCHED = ["note", "cpu_name"]; // they name other devices
const opened = new Set(); // keys of the rows whose details are shown, also after sorting and filtering
let data, lines, machines, picture = [];
const say = (text) => Object.hasOwn(data.words, text) ? data.words[text] : text;
const collator = new Intl.Collator("en", {numeric: true});

const readLines = (data) => data.lines.map((cells) => ({
  ...Object.fromEntries(cells.map((cell, i) => [data.columns[i], cell])),
  words: wordsOf(cells.flatMap((cell, i) => typeof cell !== "string" || NOT_SEARCHED.includes(data.columns[i]) ? []
    : data.columns[i] === "source" ? withoutNumbers(cell) : [cell, say(cell)]).join(" ")),
}));

// Of a source: .../M1-tensorflow-benchmark/resnet18 also has figures of other chips and models.
const withoutNumbers = (text) => text.replace(/\w*\d\w*/g, " ");
// Two digits begin a word, so that "resnet 18" and "rtx4090" are found; 3.2 is one.
const wordsOf = (text) =>
  text.toLowerCase().split(/(?<!\d)\.|\.(?!\d)|[^\p{L}\p{N}.]+|(?<=\p{L})(?=\d\d)/u).filter(Boolean);
const BRANDS = ["geforce", "quadro", "tesla"]; // drivers print them, most sources do not

// Lines in which each word begins a word. Numbers and short words are whole, unless the last one is still being typed;
// a number is next to its unit.
function search(lines, text) {
  const asked = wordsOf(text).filter((word) => !BRANDS.includes(word));
  return asked.reduce((found, word, i) => {
    const isShort = /^[\d.]+$/.test(word) || word.length <= 3;
    const begins = (words, k) => isShort ? words[k] === word : words[k].startsWith(word);
    const isUnit = i > 0 && /^\d+ (bits?|px|tokens|cores?|devices|threads)$/.test(`${asked[i - 1]} ${word}`);
    const follows = (words, k) => !isUnit || words[k - 1] === asked[i - 1];
    const whole = found.filter(({words}) => words.some((each, k) => begins(words, k) && follows(words, k)));
    return whole.length || i < asked.length - 1 || !isShort ? whole
      : found.filter(({words}) => words.some((each) => each.startsWith(word)));
  }, lines);
}

const isPublished = (line) => line.source !== "";
const isSound = (line) => line.value > 0 && line.status === "" && !line.flags.includes("implausible");
const unique = (lines, name) => [...new Set(lines.map((line) => line[name]))];

// What the address asks for: `found` by a search and other choices; `lines`, those of one work, or all that are found
// if these leave several works; `works` to choose from, [work, its sound lines], those of most machines first.
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
  works.sort(([, a], [, b]) => unique(b, "machine").length - unique(a, "machine").length);
  const ofWork = lines.filter((line) => line.work === chosen.work);
  return {chosen, options, works, found: lines, lines: chosen.work ? ofWork : lines};
}

// The lines that are drawn: of one work, own ones and then the fastest ones if there are too many.
function barsOf({lines, chosen}) {
  const found = chosen.work ? lines.filter(isSound) : [];
  found.sort((a, b) => isPublished(a) - isPublished(b) || b.value - a.value);
  return found.slice(0, MOST_BARS).sort((a, b) => b.value - a.value);
}

// Each line of two machines, next to the other one's of the same work: the one with equal settings, or the fastest;
// if a machine has figures of its CPU and of its GPU, each next to its like.
function pairUp(lines, machines) {
  const [a, b] = [0, 1].map((side) => lines.filter((line) => line.machine === machines[side] && isSound(line))
    .sort((x, y) => y.value - x.value));
  const settings = (line) => line.how.replace(/^[CG]PU, /, "");  // a machine may have figures of both
  const isMixed = [a, b].some((side) => new Set(side.map((line) => line.kind)).size > 1);
  const match = (line, others) => {
    const same = others.filter((other) => other.work === line.work && (!isMixed || other.kind === line.kind));
    return same.find((other) => settings(other) === settings(line)) ?? same[0];
  };
  const pairs = a.map((line) => ({a: line, b: match(line, b)}));
  pairs.push(...b.map((line) => ({a: match(line, a), b: line})));
  return pairs.filter((pair, i) => pairs.findIndex((other) => other.a === pair.a && other.b === pair.b) === i)
    .map((pair) => ({...pair.a ?? pair.b, ...pair}))
    .sort((x, y) => !(x.a && x.b) - !(y.a && y.b) || collator.compare(x.work, y.work));
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
const result = (line) => line.value > 0 ? `${figure(line.value)} ${line.per}` : line.stated;
const warnings = (line) => `${line.flags} ${line.status}`.trim();

// --- The page. ---

const SVG = ["svg", "g", "rect", "line", "text", "circle", "title"];

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
const named = (line, ...parts) => element("span", {}, ...parts, element("div", {class: "narrow"}, line.how));

// Columns of the table: title, text or node of a line, value to sort by, class.
const COLUMNS = {
  machine: {title: "Device", value: (line) => line.shown, class: "long", cell: (line) =>
    named(line, line.shown, element("span", {class: "tag"}, isPublished(line) ? " (published)" : ""))},
  work: {title: "Work", value: (line) => line.work, class: "long",
    cell: (line) => element("a", {href: writeAddress({work: line.work})}, line.work)}, // of all machines
  value: {title: "Result", cell: result, value: (line) => line.value ?? 0, class: "number"},
  interval: {title: "Interval", cell: interval, value: (line) => (line.high - line.low) / line.value || 0,
    class: "number wide"},
  how: {title: "Settings", cell: (line) => line.how, class: "long wide"},
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
    isPublished(line) && "published", line.how, warnings(line)))) : "",
});
const ratioOf = ({a, b}) => a && b ? b.value / a.value : 0;
const ratio = {title: "Second / first", class: "number", value: ratioOf,
  cell: (pair) => ratioOf(pair) ? figure(ratioOf(pair), 3) : ""};
const pairColumns = ([a, b]) => ({work: COLUMNS.work, ...b && {ratio}, a: sideOf("a", a), ...b && {b: sideOf("b", b)}});

function describe(line) {
  const flags = warnings(line).split(" ").filter(Boolean).map((flag) =>
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
  const [, descends, by] = /^(-?)(.*)$/.exec(address.sort);
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
    const key = [line.a, line.b, line].map((each) => lines.indexOf(each)).join(); // a pair is made anew each time
    const toggle = () => {
      if (!opened.delete(key)) opened.add(key);
      show();
    };
    const button = element("button", {type: "button", onclick: toggle,
      "aria-label": `Details of ${line.shown}, ${line.work}`}, "Details");
    const details = element("td", {colspan: head.length + 1}), below = element("tr", {}, details);
    const show = () => {
      const isOpen = opened.has(key);
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

// Draw a bar for each line, with the settings that not all have; points on a logarithmic axis, which has no zero.
function drawBars(bars) {
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
  const settings = bars.map((line) => line.how.split(", "));
  const common = settings[0].filter((word) => settings.every((words) => words.includes(word)));
  const drawn = bars.map((line, i) => {
    const top = i * row, y = top + (isNarrow ? 40 : row / 2), mark = isPublished(line) ? "published" : "own";
    const note = join(...settings[i].filter((word) => !common.includes(word)));
    return element("g", {}, element("title", {}, join(line.shown, note, result(line), interval(line))),
      element("text", {x: 0, y: top + 9}, cut(line.shown, 7.2)),
      element("text", {class: "note", x: 0, y: top + 25}, cut(note, 6.8)),
      isLog ? element("circle", {class: mark, cx: x(line.value), cy: y, r: 5.5})
        : element("rect", {class: mark, x: left, y: y - 7, width: x(line.value) - left, height: 14}),
      ...interval(line) ? [element("line", {class: "interval", x1: x(line.low), x2: x(line.high), y1: y, y2: y})] : [],
      element("text", {x: right + 10, y}, figure(line.value)));
  });
  const words = join(bars[0].per, ...common, isLog && "logarithmic axis");
  at("caption").textContent = words;
  return element("svg", {width, height: bottom + 20, role: "img", "aria-label": words}, ...axis, ...drawn);
}

function drawPicture() {
  at("picture").hidden = !picture.length;
  at("bars").replaceChildren(...picture.length ? [drawBars(picture)] : []);
}

// A labelled choice that changes the address; a select keeps its element, and so the focus.
function showSelect(place, name, label, options, value, change) {
  const id = `choice-${name}`;
  if (!at(id)) at(place).append(element("label", {}, label, element("select", {id})));
  at(id).replaceChildren(...options);
  at(id).value = value;
  at(id).onchange = () => { location.hash = writeAddress(change(at(id).value)); };
  at(id).parentNode.hidden = at(id).length < 2;
}

const option = (value, text) => element("option", {value}, text);

// What to run if two machines have no equal work: a published one cannot run anything.
function explainUnequal(side) {
  const published = side.find((machine) => lines.every((line) => line.machine !== machine || isPublished(line)));
  return "No equal work with a result: run " + (published
    ? `make match B="${machines.get(published)}" on the other machine.` : "make all on both.");
}

// A group for each workload: its works with at least two figures.
function groupWorks(works) {
  const groups = new Map(unique(lines, "workload").map((name) => [name, element("optgroup", {label: say(name)})]));
  for (const [work, found] of works) {
    const {workload} = lines.find((line) => line.work === work), count = unique(found, "machine").length;
    groups.get(workload).append(option(work, `${work} (${count} machine${count === 1 ? "" : "s"})`));
  }
  return [...groups.values()].filter((group) => group.hasChildNodes());
}

function render() {
  const address = readAddress(location.hash), q = address.q ?? "", view = choose(lines, address), {chosen} = view;
  const side = [address.a, address.b].filter((machine) => machines.has(machine)), isSide = side.length > 0;
  const works = groupWorks(view.works), isNarrow = view.found.length < lines.length;
  if (isNarrow) works.unshift(option("", "all that are found"));
  showSelect("choices", "work", "Work", isSide ? [] : works, chosen.work, (work) => ({...address, work}));
  const any = () => [option("", "any"), ...[...machines].map(([machine, shown]) => option(machine, shown))];
  showSelect("choices", "a", "Machine", any(), side[0] ?? "", (a) => ({...address, a}));
  showSelect("choices", "b", "Side by side with", isSide ? any() : [], side[1] ?? "", (b) => ({...address, b}));
  for (const [name, label] of Object.entries(CHOICES)) {
    const values = view.options[name].map((value) => option(value, say(value)));
    showSelect("settings", name, label, values.length > 1 ? [option("", "any"), ...values] : [], chosen[name],
      (value) => ({...address, work: "", [name]: value}));
  }
  if (document.activeElement !== at("filter")) at("filter").value = q;
  picture = isSide ? [] : barsOf(view);
  drawPicture();
  const {work, ...others} = COLUMNS, sort = isSide ? "" : chosen.work ? "-value" : "work";
  const listed = isSide ? pairUp(view.found, side) : [...view.lines].sort((a, b) => b.value - a.value);
  showTable(listed, isSide ? pairColumns(side) : chosen.work ? others : COLUMNS, {sort, ...address});
  at("count").textContent = `${listed.length} of ${lines.length} lines.` +
    (picture.length === MOST_BARS ? ` The chart has at most ${MOST_BARS}.` : "");
  at("none").hidden = view.found.length;
  at("unequal").textContent = side.length < 2 || listed.some((pair) => pair.a && pair.b) ? "" : explainUnequal(side);
  at("heading").textContent = isSide ? side.map((each) => machines.get(each)).join(" and ")
    : chosen.work || join(q && `\u201c${q}\u201d`, ...Object.keys(CHOICES).map((name) => say(chosen[name])));
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
