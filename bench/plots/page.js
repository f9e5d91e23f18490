// The script of results/index.html: shows what the address names, and changes the address with every choice.
// Text from results becomes text nodes only, never HTML.
"use strict";

// --- What is shown: functions without a page, which tests/plots/test_html.py runs. ---

const MOST_BARS = 30;
// In this order: the values of each depend on those before.
const CHOICES = {shown: "Machine", workload: "Workload", model: "Model", phase: "Phase", scope: "Measured",
  precision: "Precision", batch_size: "Batch size", framework: "Framework", kind: "Device"};
const NOT_SEARCHED = ["note", "cpu_name", "source"]; // they name other devices
let data, lines, picture = [];
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
const isSound = (line) => line.value > 0 && line.status === "" && !line.flags.includes("implausible");
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
  const ofWork = lines.filter((line) => line.work === chosen.work);
  return {chosen, options, works, found: lines, lines: chosen.work ? ofWork : lines};
}

// The lines that are drawn: of one work, own ones and then the fastest ones if there are too many.
function barsOf({lines, chosen}) {
  const found = chosen.work ? lines.filter(isSound) : [];
  found.sort((a, b) => isPublished(a) - isPublished(b) || b.value - a.value);
  return found.slice(0, MOST_BARS).sort((a, b) => b.value - a.value);
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
const warnings = (line) => `${line.flags} ${line.status}`.trim();

// --- The page. ---

const SVG = ["svg", "g", "rect", "line", "text", "title"];

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

// Columns of the table: title, text or node of a line, value to sort by, class.
const COLUMNS = {
  machine: {title: "Device", value: (line) => line.shown, class: "long",
    cell: (line) => element("span", {}, line.shown, // with the settings if the page is too narrow for their column
      element("span", {class: "tag"}, isPublished(line) ? " (published)" : ""),
      element("div", {class: "narrow"}, line.how))},
  work: {title: "Work", value: (line) => line.work, class: "long",
    cell: (line) => element("a", {href: writeAddress({work: line.work})}, line.work)}, // of all machines
  value: {title: "Result", cell: result, value: (line) => line.value ?? 0, class: "number"},
  interval: {title: "Interval", cell: interval, value: (line) => (line.high - line.low) / line.value || 0,
    class: "number wide"},
  how: {title: "Settings", cell: (line) => line.how, class: "long wide"},
  peak: {title: "Of peak", cell: (line) => !shareOf(line) ? ""
    : `${percent(shareOf(line))} %${readsMemory(line) ? " of bandwidth" : ""}`,
    value: (line) => shareOf(line) ?? 0, class: "number wide"},
  flags: {title: "Flags", cell: (line) => warnings(line).replaceAll(" ", ", "), class: "long wide"},
};

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
    const details = element("td", {colspan: head.length + 1}), below = element("tr", {}, details);
    const show = (isOpen) => {
      line.isOpen = isOpen; // also after sorting and filtering
      button.setAttribute("aria-expanded", String(isOpen));
      details.replaceChildren(...isOpen ? [describe(line)] : []);
      below.hidden = !isOpen;
    };
    const button = element("button", {type: "button", onclick: () => show(!line.isOpen),
      "aria-label": `Details of ${line.shown}, ${line.work}`}, "Details");
    show(Boolean(line.isOpen));
    return [element("tr", {}, ...Object.values(columns).map((column) =>
      element("td", {class: column.class}, column.cell(line))), element("td", {}, button)), below];
  }));
  at("table").replaceChildren(element("thead", {}, element("tr", {}, ...head, element("th", {}, "More"))), body);
  at("table").querySelector(`[data-sort="${CSS.escape(focused ?? "")}"]`)?.focus();
}

// Draw a bar for each line, with the settings that not all have.
function drawBars(bars) {
  const width = Math.max(at("bars").clientWidth, 300), isNarrow = width < 640;
  const left = isNarrow ? 4 : 320, right = width - 70, row = isNarrow ? 52 : 36;
  const most = Math.max(...bars.map((line) => line.high ?? line.value));
  const x = (value) => left + (right - left) * value / most;
  const room = isNarrow ? width : left - 10;
  const cut = (text, size) => text.length * size > room ? text.slice(0, room / size - 1) + "\u2026" : text;
  const settings = bars.map((line) => line.how.split(", "));
  const common = settings[0].filter((word) => settings.every((words) => words.includes(word)));
  const drawn = bars.map((line, i) => {
    const top = i * row, y = top + (isNarrow ? 40 : row / 2), mark = isPublished(line) ? "published" : "own";
    const note = join(...settings[i].filter((word) => !common.includes(word)));
    return element("g", {}, element("title", {}, join(line.shown, note, result(line), interval(line))),
      element("text", {x: 0, y: top + 9}, cut(line.shown, 7.2)),
      element("text", {class: "note", x: 0, y: top + 25}, cut(note, 6.8)),
      element("rect", {class: mark, x: left, y: y - 7, width: x(line.value) - left, height: 14}),
      ...interval(line) ? [element("line", {class: "interval", x1: x(line.low), x2: x(line.high), y1: y, y2: y})] : [],
      element("text", {x: right + 10, y}, figure(line.value)));
  });
  const words = join(bars[0].per, ...common);
  at("caption").textContent = words;
  return element("svg", {width, height: bars.length * row, role: "img", "aria-label": words}, ...drawn);
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

function render() {
  const address = readAddress(location.hash), q = address.q ?? "", view = choose(lines, address), {chosen} = view;
  const works = view.works.map(([work, found]) => option(work, `${work} (${unique(found, "shown").length})`));
  if (view.found.length < lines.length) works.unshift(option("", "all that are found"));
  showSelect("choices", "work", "Work (number of machines)", works, chosen.work, (work) => ({...address, work}));
  for (const [name, label] of Object.entries(CHOICES)) {
    const place = name === "shown" ? "choices" : "settings";
    const values = view.options[name].map((value) => option(value, say(value)));
    showSelect(place, name, label, values.length > 1 ? [option("", "any"), ...values] : [], chosen[name],
      (value) => ({...address, work: "", [name]: value}));
  }
  if (document.activeElement !== at("filter")) at("filter").value = q;
  picture = barsOf(view);
  drawPicture();
  const {work, ...others} = COLUMNS, listed = [...view.lines].sort((a, b) => b.value - a.value);
  showTable(listed, chosen.work ? others : COLUMNS, {sort: chosen.work ? "-value" : "work", ...address});
  at("count").textContent = `${listed.length} of ${lines.length} lines.` +
    (picture.length === MOST_BARS ? ` The chart has at most ${MOST_BARS}.` : "");
  at("none").hidden = view.found.length;
  at("heading").textContent = chosen.work
    || join(q && `\u201c${q}\u201d`, ...Object.keys(CHOICES).map((name) => say(chosen[name])));
  document.title = `${at("heading").textContent} - machine-learning speed test`;
}

function start() {
  data = JSON.parse(at("data").textContent);
  lines = readLines(data);
  at("filter").oninput = () => location.replace(
    writeAddress({...readAddress(location.hash), q: at("filter").value}));
  window.addEventListener("hashchange", render);
  render();
  new ResizeObserver(drawPicture).observe(at("bars")); // only the picture depends on the width
}

if (typeof document !== "undefined") start();
