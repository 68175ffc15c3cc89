// Draws the report from the data in the page. Names are untrusted, so they only become text nodes.
"use strict";
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const main = document.querySelector("main");
const tip = document.getElementById("tip");
const SVG = "http://www.w3.org/2000/svg";
// Status: its usual tone and its meaning. The tone of a group follows the severity of its worst alert.
const STATUS = {
  LOST: ["bad", "has missed records that were deleted before it read them"],
  AHEAD: ["bad", "committed an offset past the log end"],
  REWIND: ["bad", "went back to an earlier offset"],
  STALLED: ["bad", "is alive, but makes no progress on unread records"],
  STOPPED: ["bad", "has unread records and has stopped committing"],
  WARNING: ["warn", "commits, but its unread records never become fewer"],
  UNCOMMITTED: ["warn", "has members, but no committed offset"],
  BEHIND: ["warn", "reads, but its first unread record has waited too long"],
  UNREAD: ["warn", "has more unread records than its limit"],
  SILENT: ["warn", "has not committed for longer than its limit"],
  PAST_END: ["warn", "committed an offset past the log end, and has come back since"],
  UNKNOWN: ["dim", "has unread records, and too few commits to judge it by"],
  STALE: ["dim", "has no members and no recent commit"],
  OK: ["ok", "reads and commits normally"],
};
const TONES = { critical: "bad", warning: "warn", notice: "dim", ok: "ok" };
const ORDER = Object.keys(STATUS);
const PAGE_ROWS = 100;
const HEAT_ROWS = 40;
const ATTENTION_ROWS = 8;
// If more groups than this need attention, they are listed by reason, not one by one.
const SINGLE_GROUPS = 20;
const CHANGE_ROWS = 20;
const QUEUE_ROWS = 20;
const WIDE_TEXT = 12, LONG_TEXT = 40;

// Small helpers: nodes, numbers, times.

function add(node, children) {
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) {
      node.append(child instanceof Node ? child : String(child));
    }
  }
  return node;
}
function dress(node, attributes) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  return node;
}
const h = (tag, attributes, ...children) => add(dress(document.createElement(tag), attributes), children);
const s = (tag, attributes, ...children) => add(dress(document.createElementNS(SVG, tag), attributes), children);

const DASH = "\u2013";
const number = new Intl.NumberFormat("en");
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const count = (value) => (value === null || value === undefined ? DASH : number.format(value));
const short = (value) => (value === null ? DASH : value < 10000 ? count(value) : compact.format(value));
const capital = (text) => text[0].toUpperCase() + text.slice(1);
const plural = (n, one, many) => `${count(n)} ${n === 1 ? one : many || one + "s"}`;

function duration(ms) {
  if (ms === null || ms === undefined) return DASH;
  if (ms < 1000) return ms === 0 ? "0 s" : `${ms} ms`;
  const seconds = Math.floor(ms / 1000);
  const units = [["d", 86400, "h", 3600], ["h", 3600, "min", 60], ["min", 60, "s", 1]];
  for (const [unit, size, smaller, part] of units) {
    if (seconds >= size) {
      const rest = Math.floor((seconds % size) / part);
      return rest ? `${Math.floor(seconds / size)} ${unit} ${rest} ${smaller}` : `${Math.floor(seconds / size)} ${unit}`;
    }
  }
  return `${seconds} s`;
}
const ago = (ms) => (ms === null || ms === undefined ? DASH : ms < 1000 ? "now" : `${duration(ms)} ago`);
// The largest time that Date has.
const LAST_MS = 8.64e15;
const clock = (ms, seconds) => {
  if (ms === null || Math.abs(ms) > LAST_MS) return DASH;
  const text = new Date(ms).toISOString();
  return `${text.slice(0, 10)} ${text.slice(11, seconds ? 19 : 16)}`;
};

// A series is text: numbers in base 36, separated by commas. An empty number repeats the previous one.
function series(text) {
  let last = 0;
  return text.split(",").map((part) => {
    if (part === "-") last = null;
    else if (part !== "") last = parseInt(part, 36);
    return last;
  });
}
const groups = data.groups.map((group) => {
  const [lag, wait, commits] = group.history.map(series);
  return { ...group, lag, wait, commits, total: commits.reduce((sum, value) => sum + (value || 0), 0) };
});
// Rows are lists; their column names are stored once.
function rowsOf(group, name) {
  return group[name].map((row) => Object.fromEntries(data.columns[name].map((column, index) => [column, row[index]])));
}
const byName = new Map(groups.map((group) => [group.name, group]));
const times = Array.from({ length: data.buckets }, (_, index) => data.from + (index + 1) * data.step);

// Every figure shows values under the pointer, and can be saved as a picture.

function showTip(event, lines) {
  tip.replaceChildren(...lines.map((line, index) => h(index ? "div" : "b", {}, line)));
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const x = Math.min(event.clientX + 14, innerWidth - box.width - 8);
  const y = event.clientY + box.height + 24 > innerHeight ? event.clientY - box.height - 12 : event.clientY + 16;
  tip.style.left = `${x}px`;
  tip.style.top = `${y}px`;
}
const hideTip = () => { tip.hidden = true; };

function figure(title, note, picture) {
  const save = h("button", { class: "save", title: "Save as PNG", "aria-label": `Save ${title} as PNG` }, "PNG");
  save.addEventListener("click", () => savePicture(title, picture));
  return h("figure", {}, h("figcaption", {}, h("span", {}, h("b", {}, title), " ", note || ""), save), picture);
}

const STYLED = ["fill", "stroke", "stroke-width", "stroke-linejoin", "opacity", "font-size", "font-family", "text-anchor",
  "fill-opacity", "stroke-dasharray"];

function frozen(svg) {
  const copy = svg.cloneNode(true);
  const from = [svg, ...svg.querySelectorAll("*")];
  [copy, ...copy.querySelectorAll("*")].forEach((node, index) => {
    const style = getComputedStyle(from[index]);
    for (const name of STYLED) node.setAttribute(name, style.getPropertyValue(name));
  });
  copy.querySelectorAll(".cursor").forEach((node) => node.remove());
  return copy;
}

async function savePicture(title, picture) {
  h("a", { download: `${title.replace(/[^\w.-]+/g, "-")}.png`, href: await pictureOf(title, picture) }).click();
}

// A data: URL of a PNG.
async function pictureOf(title, picture) {
  const scale = 2, margin = 16, head = 34;
  const box = picture.getBoundingClientRect();
  const canvas = h("canvas", { width: (box.width + 2 * margin) * scale, height: (box.height + head + margin) * scale });
  const pen = canvas.getContext("2d");
  const style = getComputedStyle(document.body);
  pen.scale(scale, scale);
  pen.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--card");
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.fillStyle = style.color;
  pen.font = `600 14px ${style.fontFamily}`;
  pen.fillText(`${title}, ${clock(data.as_of)} UTC`, margin, 22, box.width);
  if (picture instanceof HTMLCanvasElement) {
    pen.drawImage(picture, margin, head, box.width, box.height);
  } else {
    const copy = frozen(picture);
    copy.setAttribute("width", box.width);
    copy.setAttribute("height", box.height);
    const text = new XMLSerializer().serializeToString(copy);
    const url = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
    const image = new Image();
    await new Promise((resolve, reject) => { image.onload = resolve; image.onerror = reject; image.src = url; });
    pen.drawImage(image, margin, head, box.width, box.height);
    URL.revokeObjectURL(url);
  }
  return canvas.toDataURL("image/png");
}

// A phone: page.css has the same width.
const narrow = matchMedia("(max-width: 640px)");
const span = Math.max(data.as_of - data.from, 1);
const H = 180, RIGHT = 12, TOP = 12, BASE = H - 26, LABEL_GAP = 12;
const LABEL_PX = 11;
const pencil = document.createElement("canvas").getContext("2d");
function widthOf(text, size = LABEL_PX) {
  pencil.font = `${size}px ${getComputedStyle(document.body).fontFamily}`;
  return pencil.measureText(text).width;
}

function niceTop(value, isTime) {
  if (value <= 0) return isTime ? 1000 : 1;
  if (!isTime && value < 5) return Math.ceil(value);
  const steps = isTime
    ? [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200, 86400].map((v) => v * 1000)
    : [];
  for (const step of steps) if (value <= step) return step;
  const unit = isTime ? 86400000 : 1;
  const power = 10 ** Math.floor(Math.log10(value / unit));
  return [1, 2, 2.5, 5, 10].map((factor) => factor * power * unit).find((top) => top >= value);
}

// The labels of an axis of this length, at most as many as fit: their places on it, and texts.
const DAY_S = 86400, YEAR_S = 365 * DAY_S;
function timeTicks(length, size = LABEL_PX) {
  const steps = [1, 5, 10, 30, 60, 300, 600, 1800, 3600, 7200, 14400, 21600, 43200, DAY_S, 2 * DAY_S, 7 * DAY_S, 30 * DAY_S, 90 * DAY_S, YEAR_S];
  const form = (step) => (step < 60 ? [11, 19] : step < DAY_S ? [11, 16] : step < 30 * DAY_S ? [5, 10] : [0, 7]);
  const most = (step) => Math.min(6, length / (widthOf("0000-00-00 00:00:00".slice(...form(step)), size) + LABEL_GAP) - 1);
  const step = steps.find((each) => span / (each * 1000) <= most(each)) || Math.ceil(span / (YEAR_S * 1000 * most(YEAR_S))) * YEAR_S;
  const ticks = [];
  for (let at = Math.ceil(data.from / (step * 1000)) * step * 1000; at <= data.as_of; at += step * 1000) {
    const midnight = step < DAY_S && at % (DAY_S * 1000) === 0;
    ticks.push([((at - data.from) / span) * length, new Date(at).toISOString().slice(...(midnight ? [5, 10] : form(step)))]);
  }
  return ticks;
}

// The axes of a chart. A label is as wide as its text, and no part of it is outside the picture.
function frame(title, top, format, isTime) {
  const width = narrow.matches ? 336 : 560;
  const lines = !isTime && top < 4 ? top : 2;
  const labels = Array.from({ length: lines + 1 }, (_, index) => format((top * index) / lines));
  const left = Math.ceil(Math.max(narrow.matches ? 32 : 56, ...labels.map((text) => widthOf(text) + LABEL_GAP))), length = width - left - RIGHT;
  const svg = s("svg", { viewBox: `0 0 ${width} ${H}`, role: "img", "aria-label": title, "font-size": LABEL_PX });
  labels.forEach((text, index) => {
    const y = BASE - ((BASE - TOP) * index) / lines;
    svg.append(s("line", { class: "grid", x1: left, x2: width - RIGHT, y1: y, y2: y }), s("text", { x: left - 8, y: y + 4, "text-anchor": "end" }, text));
  });
  for (const [at, text] of timeTicks(length)) {
    const half = widthOf(text) / 2 + 1;
    svg.append(s("text", { x: Math.min(left + at, width - half), y: H - 7, "text-anchor": "middle" }, text));
  }
  return { svg, width, left, length, xOf: (ms) => left + length * Math.min(Math.max((ms - data.from) / span, 0), 1) };
}

function under({ svg, width, left, length, xOf }, find) {
  const cursor = s("line", { class: "cursor", y1: TOP, y2: BASE, x1: -9, x2: -9 });
  svg.append(cursor);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const at = data.from + (((event.clientX - box.left) / box.width) * width - left) / length * span;
    const [where, lines] = find(at);
    cursor.setAttribute("x1", xOf(where));
    cursor.setAttribute("x2", xOf(where));
    showTip(event, lines);
  });
  svg.addEventListener("pointerleave", () => { cursor.setAttribute("x1", -9); cursor.setAttribute("x2", -9); hideTip(); });
  return svg;
}
const bucketAt = (at) => Math.min(Math.max(Math.ceil((at - data.from) / data.step) - 1, 0), data.buckets - 1);

function areaChart(title, values, format, isTime, colour) {
  const top = niceTop(Math.max(...values.map((value) => value || 0)), isTime);
  const axes = frame(title, top, format, isTime), { svg, xOf } = axes;
  const y = (value) => BASE - (BASE - TOP) * Math.min(value / top, 1);
  let line = "", area = "", open = false, last = 0;
  values.forEach((value, index) => {
    if (value === null) { if (open) area += `L${last} ${BASE}Z`; open = false; return; }
    const x = xOf(Math.min(times[index], data.as_of)).toFixed(1);
    area += `${open ? "L" : `M${x} ${BASE}L`}${x} ${y(value).toFixed(1)}`;
    line += `${open ? "L" : "M"}${x} ${y(value).toFixed(1)}`;
    open = true;
    last = x;
  });
  if (open) area += `L${last} ${BASE}Z`;
  svg.append(s("path", { class: `area ${colour}`, d: area }), s("path", { class: `line ${colour}`, d: line }));
  return under(axes, (at) => {
    const index = bucketAt(at);
    return [Math.min(times[index], data.as_of), [format(values[index]), `${clock(Math.min(times[index], data.as_of))} UTC`]];
  });
}

function barChart(title, values) {
  const top = niceTop(Math.max(...values, 0), false);
  const axes = frame(title, top, short, false), { svg, xOf } = axes;
  const slot = axes.length * (data.step / span);
  let path = "";
  values.forEach((value, index) => {
    if (!value) return;
    const x = xOf(times[index] - data.step), height = Math.max((BASE - TOP) * (value / top), 1);
    path += `M${(x + slot * 0.12).toFixed(1)} ${BASE}v${(-height).toFixed(1)}h${(slot * 0.76).toFixed(1)}v${height.toFixed(1)}Z`;
  });
  svg.append(s("path", { class: "bars", d: path }));
  return under(axes, (at) => {
    const index = bucketAt(at), begin = times[index] - data.step;
    return [begin + data.step / 2, [plural(values[index], "commit"), `from ${clock(begin)} UTC, ${duration(data.step)}`]];
  });
}

// One stripe per generation: the colour changes at a rebalance, the height is the number of members.
function timeline(title, rebalances) {
  const shown = rebalances.filter((row) => row.at <= data.as_of);
  const scale = niceTop(Math.max(...shown.map((row) => row.members), 1), false);
  const axes = frame(title, scale, short, false), { svg, xOf } = axes;
  shown.forEach((row, index) => {
    const end = index + 1 < shown.length ? shown[index + 1].at : data.as_of;
    if (end < data.from) return;
    const x = xOf(row.at), width = Math.max(xOf(end) - x, 1), height = (BASE - TOP) * (row.members / scale);
    svg.append(s("rect", { class: `stripe stripe${row.generation % 2 ? 1 : 0}`, x, y: BASE - height, width, height }));
    if (row.at >= data.from) {
      const kind = row.left > 0 ? "left" : row.joined > 0 ? "joined" : "same";
      svg.append(s("line", { class: `mark ${kind}`, x1: x, x2: x, y1: BASE - Math.max(height, 6), y2: BASE }));
      svg.append(s("circle", { class: `dot ${kind}`, cx: x, cy: BASE - height, r: 4 }));
    }
  });
  return under(axes, (at) => {
    const row = [...shown].reverse().find((each) => each.at <= at) || shown[0];
    return [row.at, [`generation ${row.generation}: ${row.kind}`, `${plural(row.members, "member")}, +${row.joined} \u2212${row.left}`,
      `since ${clock(row.at, true)} UTC`]];
  });
}

const mix = (at) => `color-mix(in oklab, var(--accent) ${Math.round(8 + 92 * at)}%, var(--card))`;

// Commits of several groups: one row per group, one cell per time step, darker for more commits.
function heatMap(title, rows) {
  const [label, width] = narrow.matches ? [110, 340] : [210, 1080];
  const cell = 18, height = rows.length * cell + 24, scale = 2;
  const canvas = h("canvas", { width: width * scale, height: height * scale, role: "img", "aria-label": title, class: "heat" });
  const most = Math.max(...rows.flatMap((group) => group.commits), 1);
  const slot = (width - label) / data.buckets, gap = slot > 4 ? 1 : 0;
  const probe = h("span", { hidden: "" });
  document.body.append(probe);
  const colour = (css) => { probe.style.color = css; return getComputedStyle(probe).color; };
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  const text = colour("var(--text)"), dim = colour("var(--dim)"), empty = colour("var(--empty)");
  const shades = Array.from({ length: 17 }, (_, index) => colour(mix(index / 16)));
  probe.remove();
  pen.font = `12px ${getComputedStyle(document.body).fontFamily}`;
  pen.textBaseline = "middle";
  rows.forEach((group, row) => {
    pen.fillStyle = text;
    pen.fillText(clipped(pen, group.name || "(empty name)", label - 14), 0, row * cell + cell / 2);
    group.commits.forEach((value, index) => {
      pen.fillStyle = value ? shades[Math.round((Math.log1p(value) / Math.log1p(most)) * 16)] : empty;
      pen.fillRect(label + index * slot, row * cell + 1, slot - gap, cell - 2);
    });
  });
  pen.fillStyle = dim;
  pen.textAlign = "center";
  for (const [at, words] of timeTicks((width - label) * span / (data.step * data.buckets), 12)) {
    pen.fillText(words, Math.min(label + at, width - pen.measureText(words).width / 2), rows.length * cell + 14);
  }
  const find = (event) => {
    const box = canvas.getBoundingClientRect();
    return [rows[Math.floor(((event.clientY - box.top) / box.height) * height / cell)],
      Math.floor((((event.clientX - box.left) / box.width) * width - label) / slot)];
  };
  canvas.addEventListener("pointermove", (event) => {
    const [group, index] = find(event);
    if (!group) { hideTip(); return; }
    showTip(event, index < 0 ? [group.name] : [plural(group.commits[index], "commit"), group.name,
      `from ${clock(times[index] - data.step)} UTC, ${duration(data.step)}`]);
  });
  canvas.addEventListener("pointerleave", hideTip);
  canvas.addEventListener("click", (event) => { const [group] = find(event); if (group) go(group.name); });
  return canvas;
}
function clipped(pen, name, width) {
  if (pen.measureText(name).width <= width) return name;
  let end = name.length;
  while (end > 1 && pen.measureText(`${name.slice(0, end)}\u2026`).width > width) end -= 1;
  return `${name.slice(0, end)}\u2026`;
}

function spark(values) {
  const top = Math.max(...values.map((value) => value || 0), 1);
  let path = "", open = false;
  values.forEach((value, index) => {
    if (value === null) { open = false; return; }
    path += `${open ? "L" : "M"}${((index / Math.max(values.length - 1, 1)) * 96).toFixed(1)} ${(21 - 18 * (value / top)).toFixed(1)}`;
    open = true;
  });
  return s("svg", { viewBox: "0 0 96 24", class: "spark", preserveAspectRatio: "none", "aria-hidden": "true" }, s("path", { class: "line", d: path }));
}

// Parts of the page.

const words = (status) => status.toLowerCase().replace("_", " ");
const tone = (group) => TONES[group.severity];
const badge = (status, colour) => h("span", { class: `badge ${colour || STATUS[status][0]}`, title: STATUS[status][1] }, words(status));
const badgeOf = (group) => badge(group.status, tone(group));
// <bdi> limits a name's effect on the text direction to the name.
const nameOf = (group) => (group.name ? h("bdi", {}, group.name) : h("i", {}, "(empty name)"));
const isolated = (text) => `\u2068${text}\u2069`;
const why = (group) => (group.alerts.length ? group.alerts[0].message
  : group.queue ? "takes records from a queue" : group.age === null ? "has not committed anything" : STATUS[group.status][1]);
// The unread records of a group or partition; an upper bound if Kafka's offsets may have gaps.
const unread = (row, format) => (row.exact !== false ? "" : "\u2264 ") + format(row.record_lag);
const address = (name) => `#group=${encodeURIComponent(name)}`;
const link = (group) => h("a", { href: address(group.name), title: group.name || null }, nameOf(group));
// Where the group is in a console, if the report has a template of its address.
const consoleLink = (group) => data.console && group.name && h("a", { class: "console", rel: "noopener noreferrer",
  href: data.console.split("{group}").join(encodeURIComponent(group.name)) }, "Open in console");
const go = (name) => { location.hash = address(name).slice(1); };
const card = (title, ...children) => h("section", { class: "card" }, title && h("h2", {}, title), children);

// When everything is read, at the rates of the last commits.
const drained = (row) => (row.drain_ms !== null ? duration(row.drain_ms) : row.not_draining ? "never" : DASH);
const perSecond = (value) => (value === null ? DASH : value < 0 ? `\u2212${perSecond(-value)}` : value >= 100 ? short(Math.round(value)) : String(Number(value.toPrecision(2))));
const within = (ms) => (ms < 0 ? "due" : `in ${duration(ms)}`);
function expiry(group) {
  const [first] = rowsOf(group, "expiring"), due = first.in < 0;
  return group.expiring_total === 1 ? `1 offset ${due ? "is due to expire" : `expires ${within(first.in)}`}`
    : `${count(group.expiring_total)} offsets expire, the first ${due ? "is due" : within(first.in)}`;
}
// Rounded down, so that 99.996 % does not look like 100 %.
const percent = (fraction) => `${(Math.floor(fraction * 1e4 + 1e-6) / 100).toFixed(2)} %`;
const unowned = (row) => (row.most === null ? DASH : row.most === row.least ? duration(row.most) : `\u2264 ${duration(row.most)}`);

function sentence(group) {
  const parts = [], [left, first] = group.queue ? ["left", "oldest"] : ["unread", "first"];
  if (group.record_lag) parts.push(`${unread(group, count)} ${left}${group.lag_ms === null ? "" : `, the ${first} for ${duration(group.lag_ms)}`}`);
  if (group.lost) parts.push(`${plural(group.lost, "record")} lost`);
  const change = changed(group);
  if (change) parts.push(change);
  parts.push(group.members ? plural(group.members, "member") : "no members");
  if (!group.queue) parts.push(group.age === null ? "never committed" : `last commit ${ago(group.age)}`);
  if (group.expiring_total) parts.push(expiry(group));
  return parts.join(" \u00b7 ");
}

// On a narrow screen each row becomes a block with the headings as labels (page.css), so nothing is hidden.
// The roles keep it a table for screen readers.
function cell(content, head, kind) {
  return h("td", { role: "cell", class: kind, "data-label": head }, content);
}
function table(heads, rows, empty) {
  if (!rows.length) return h("p", { class: "note" }, empty || "None.");
  const longer = (content, length) => typeof content === "string" && content.length > length;
  const form = (index, content) => (heads[index][1] ? (longer(content, WIDE_TEXT) ? "n wide" : "n") : longer(content, LONG_TEXT) ? "long" : null);
  return h("div", { class: "scroll" }, h("table", { role: "table", class: "blocks" },
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, heads.map((head, index) => h("th", { role: "columnheader", scope: "col", class: form(index, head[0]) }, head[0])))),
    h("tbody", { role: "rowgroup" }, rows.map((row) => h("tr", { role: "row" }, row.map((content, index) => cell(content, heads[index][0], form(index, content))))))));
}

const more = (total, shown, what) => (total > shown ? h("p", { class: "note" }, `${count(total - shown)} more ${what} are in the Parquet tables.`) : null);

// Queues: records of share groups that are neither accepted nor archived. What a source can't tell is null.

// The numbers of a share group, with their headings: of a table, or of its own page.
function queueFacts(group) {
  const { depth, in_flight, again, deliveries, dead, natives } = group.queue;
  return [["Depth", depth === null ? DASH : unread(group, count)], ["In flight", count(in_flight)], ["Waiting again", count(again)],
    ["Most deliveries", count(deliveries)], ["Dead letters", count(dead)], ["Oldest waiting", duration(group.lag_ms)],
    ["Members", count(group.members)], ["Redis workers", count(natives)]];
}

function queuesCard() {
  const queues = groups.filter((group) => group.queue), shown = printing ? queues : queues.slice(0, QUEUE_ROWS);
  if (!queues.length) return "";
  const heads = [["Share group"], ["Status"], ...queueFacts(queues[0]).map(([title]) => [title, 1])];
  return card("Queues", table(heads, shown.map((group) => [link(group), badgeOf(group), ...queueFacts(group).map((fact) => fact[1])])),
    queues.length > shown.length && h("p", { class: "note" }, `${count(queues.length - shown.length)} more share groups are among all groups.`));
}

function queueCards(group) {
  const rows = rowsOf(group, "queues"), workers = rowsOf(group, "workers");
  return [card("Queue", table([["Topic"], ["Partition", 1], ["Status"], ["Start offset", 1], ["Depth", 1], ["In flight", 1], ["Waiting again", 1], ["Most deliveries", 1], ["Dead letters", 1], ["Oldest waiting", 1]],
    rows.map((row) => [row.topic, row.partition, badge(row.status), row.start ?? DASH, row.depth === null ? DASH : (row.exact ? "" : "\u2264 ") + count(row.depth), count(row.in_flight), count(row.again),
      count(row.deliveries), count(row.dead), duration(row.lag_ms)]), "No partition has been read."), more(group.queue.partitions, rows.length, "partitions")),
  workers.length ? card("Workers", table([["Worker"], ["Kind"], ["In flight", 1], ["Last asked", 1]],
    workers.map((row) => [h("bdi", {}, row.name), row.is_member ? "member" : "Redis worker", count(row.in_flight), ago(row.idle)])), more(group.queue.workers, workers.length, "workers")) : ""];
}

// What changed since the earlier state.

const signed = (value) => (value > 0 ? `+${short(value)}` : value < 0 ? `\u2212${short(-value)}` : "0");
const thenNow = (then, now, format) => (then === now ? format(now) : `${format(then)} \u2192 ${format(now)}`);
const grew = (group) => (group.record_lag || 0) - ((group.before && group.before.record_lag) || 0);

function changed(group) {
  if (data.compared_to === null || group.queue) return null;
  const since = `since ${clock(data.compared_to)} UTC`;
  return group.before ? `${signed(grew(group))} unread ${since}` : `new ${since}`;
}

function changesCard() {
  const rows = groups.filter((group) => !group.queue && (!group.before || grew(group) || group.before.new || group.before.gone))
    .sort((one, other) => grew(other) - grew(one) || one.rank - other.rank);
  const shown = rows.slice(0, CHANGE_ROWS);
  const parts = ({ new: added, gone }) => [added && `${count(added)} new`, gone && `${count(gone)} gone`].filter(Boolean).join(", ");
  const heads = [["Group"], ["Status"], ["More unread", 1], ["Unread", 1], ["Waiting", 1], ["Read since", 1], ["Partitions"]];
  const gone = data.gone.map((group) => [nameOf(group), h("span", { class: "badge dim" }, "gone"), signed(-(group.record_lag || 0)),
    `${short(group.record_lag)} \u2192 ${DASH}`, DASH, DASH, "group is gone"]);
  return card(`Changes since ${clock(data.compared_to)} UTC`, table(heads, [...shown.map((group) => [link(group), badgeOf(group), signed(grew(group)),
    group.before ? thenNow(group.before.record_lag, group.record_lag, short) : short(group.record_lag),
    group.before ? thenNow(group.before.lag_ms, group.lag_ms, duration) : duration(group.lag_ms),
    group.before ? short(group.before.read) : DASH, group.before ? parts(group.before) : "group is new"]), ...gone], "No group has more or fewer unread records."),
  more(rows.length, shown.length, "groups with changes"), more(data.gone_total, data.gone.length, "groups that are gone"));
}

function partitionChanges(group) {
  const rows = rowsOf(group, "changes").filter((row) => row.change !== "kept" || row.committed_before !== row.committed
    || row.record_lag_before !== row.record_lag || row.lag_ms_before !== row.lag_ms);
  const state = (row) => (row.change !== "kept" ? row.change : row.status_before === null || row.status_before === row.status ? badge(row.status)
    : [badge(row.status_before), " \u2192 ", badge(row.status)]);
  const both = (then, now, format, kind) => (kind === "new" ? format(now) : kind === "gone" ? `${format(then)} \u2192 ${DASH}` : thenNow(then, now, format));
  return [table([["Topic"], ["Partition", 1], ["Status"], ["Committed offset", 1], ["Unread", 1], ["Waiting", 1], ["Read since", 1]],
    rows.map((row) => [row.topic, row.partition, state(row), both(row.committed_before, row.committed, (value) => value ?? DASH, row.change),
      both(row.record_lag_before, row.record_lag, count, row.change), both(row.lag_ms_before, row.lag_ms, duration, row.change), count(row.read)]), "No partition has changed."),
  more(group.changes_total, group.changes.length, "partitions")];
}

const COLUMNS = [
  ["Group", (group) => group.name.toLowerCase(), (group) => link(group), false],
  ["Status", (group) => group.rank, badgeOf, false],
  ["Unread over time", (group) => group.record_lag || 0, (group) => spark(group.lag), false],
  ["Unread", (group) => group.record_lag ?? -1, (group) => unread(group, short), true],
  ["Waiting", (group) => group.lag_ms ?? -1, (group) => duration(group.lag_ms), true],
  ["Commits", (group) => group.total, (group) => short(group.total), true],
  ["Last commit", (group) => group.age ?? Infinity, (group) => ago(group.age), true],
  ["Members", (group) => group.members, (group) => count(group.members), true],
  ["Partitions", (group) => group.partitions, (group) => count(group.partitions), true],
];
let printing = false;
const state = { query: "", status: null, column: 1, down: false, rows: PAGE_ROWS, all: false, selected: -1, scroll: 0 };

function chosen() {
  const words = state.query.toLowerCase().split(/\s+/).filter(Boolean);
  const found = groups.filter((group) => (!state.status || group.status === state.status)
    && words.every((word) => group.search.includes(word)));
  const key = COLUMNS[state.column][1];
  const compare = (one, other) => (key(one) < key(other) ? -1 : key(one) > key(other) ? 1 : 0);
  found.sort((one, other) => (state.down ? -compare(one, other) : compare(one, other)) || one.rank - other.rank);
  return found;
}
groups.forEach((group, rank) => {
  group.rank = rank;
  group.search = [group.name, group.status, ...group.topics, ...group.clients].join("\n").toLowerCase();
});

const tableBody = h("tbody", { role: "rowgroup" });
const tableHead = h("tr", { role: "row" });
const found = h("span", { class: "note", role: "status" });
const rest = h("button", { class: "more", onclick: () => { state.rows += 5 * PAGE_ROWS; fillTable(); } });

function fillTable() {
  const rows = chosen(), shown = rows.slice(0, state.rows);
  tableHead.replaceChildren(...COLUMNS.map(([title, , , isNumber], index) => h("th", { role: "columnheader", scope: "col",
    class: isNumber ? "n" : null, "aria-sort": state.column === index ? (state.down ? "descending" : "ascending") : "none" },
    h("button", { onclick: () => sortBy(index) }, title,
      h("span", { class: "arrow" }, state.column === index ? (state.down ? "\u25be" : "\u25b4") : "")))));
  tableBody.replaceChildren(...shown.map((group, index) => h("tr", { role: "row", "data-group": group.name, class: index === state.selected ? "selected" : null },
    COLUMNS.map(([title, , show, isNumber]) => cell(show(group), title, isNumber ? "n" : null)))));
  found.textContent = rows.length === groups.length ? plural(rows.length, "group") : `${count(rows.length)} of ${plural(groups.length, "group")}`;
  rest.hidden = rows.length <= shown.length;
  rest.textContent = printing ? `${plural(rows.length - shown.length, "more group")}, not printed` : `Show more: ${count(rows.length - shown.length)} left`;
}
function sortBy(index) {
  state.down = state.column === index ? !state.down : index > 1;
  state.column = index;
  fillTable();
}

const search = h("input", { type: "search", placeholder: "Search groups, topics, clients", "aria-label": "Search groups, topics and clients",
  oninput: () => { state.query = search.value; state.rows = PAGE_ROWS; state.selected = -1; fillTable(); } });

function chips() {
  const counts = new Map(ORDER.map((status) => [status, groups.filter((group) => group.status === status).length]));
  const make = (status, label, size) => h("button", { class: `chip ${status ? STATUS[status][0] : ""}`, "aria-pressed": String(state.status === status),
    onclick: () => { state.status = status; state.rows = PAGE_ROWS; row.replaceWith(chips()); fillTable(); } }, label, h("b", {}, count(size)));
  const row = h("div", { class: "chips" }, make(null, "all", groups.length),
    ORDER.filter((status) => counts.get(status)).map((status) => make(status, words(status), counts.get(status))));
  return row;
}

function fleet() {
  const sum = (key) => groups.reduce((total, group) => total + (group[key] || 0), 0);
  const troubled = groups.filter((group) => group.alerts.length);
  const left = data.total - groups.length;
  const tiles = [[count(groups.length), left ? `of ${plural(data.total, "group")}` : groups.length === 1 ? "group" : "groups"], [count(troubled.length), "need attention", troubled.length ? "bad" : "ok"],
    [(groups.every((group) => group.exact !== false) ? "" : "\u2264 ") + short(sum("record_lag")), "unread records"], [duration(Math.max(...groups.map((group) => group.lag_ms || 0))), "longest wait"],
    [count(sum("members")), "members"], [short(data.commits), "commits in the log"]];
  if (sum("lost")) tiles.push([short(sum("lost")), sum("lost") === 1 ? "record lost unread" : "records lost unread", "bad"]);
  if (data.unreadable) tiles.push([count(data.unreadable), data.unreadable === 1 ? "unreadable record" : "unreadable records", "bad"]);
  const widths = ORDER.map((status) => [status, groups.filter((group) => group.status === status).length]).filter((pair) => pair[1]);
  return [
    h("section", { class: "tiles" }, tiles.map(([value, label, tone]) => h("div", { class: tone || null }, h("b", {}, value), h("span", {}, label)))),
    left ? h("p", { class: "note left" }, `Figures and charts include the ${count(groups.length)} groups that need attention most. The Parquet tables contain all ${count(data.total)}.`) : "",
    h("div", { class: "share", "aria-hidden": "true" }, widths.map(([status, size]) => h("i", { class: STATUS[status][0], style: `flex-grow:${size}`, title: `${size} ${words(status)}` }))),
    ...findings(),
    attention(troubled),
    data.compared_to === null ? "" : changesCard(),
  ];
}

// What the report states about the cluster: what needs attention or is missing, and where the numbers are from.
function findings() {
  const [told, serious] = [true, false].map((isOk) => data.findings.filter((each) => (each.severity === "ok") === isOk));
  const list = h("ul", { class: "findings" }, serious.map((each) => h("li", { class: each.severity === "critical" ? "bad" : null }, each.message)));
  return [serious.length ? card("The cluster", list) : "", ...told.map((each) => h("p", { class: "note left" }, each.message))];
}

// The alerts after the first.
function alsoOf(group) {
  const left = group.alerts_total - group.alerts.length;
  return group.alerts_total > 1 && h("ul", { class: "also" }, group.alerts.slice(1).map((alert) => h("li", {}, alert.message)),
    left > 0 && h("li", {}, `${count(left)} more in alerts.json`));
}

// One line: a group and its worst alert. The rest is in a box that opens.
function attentionLine(group) {
  return h("li", {}, badgeOf(group), h("details", { open: printing }, h("summary", {}, link(group), h("span", { class: "why" }, why(group))),
    alsoOf(group), h("div", { class: "note" }, sentence(group))), spark(group.lag));
}

function attention(troubled) {
  if (!troubled.length) return card(null, h("h2", { class: "calm" }, "Nothing needs attention"));
  if (troubled.length > SINGLE_GROUPS) return card("Needs attention", reasons(troubled));
  const shown = state.all || printing ? troubled : troubled.slice(0, ATTENTION_ROWS);
  const box = card("Needs attention", h("ul", { class: "attention" }, shown.map(attentionLine)),
  troubled.length > shown.length && h("button", { class: "more", onclick: () => { state.all = true; box.replaceWith(attention(troubled)); } },
    `Show all ${count(troubled.length)}`));
  return box;
}

// A box for each severity and status, worst first. It has a line for each of its groups once it was opened.
function reasons(troubled) {
  const kinds = new Map();
  for (const group of troubled) {
    const key = `${group.severity} ${group.status}`;
    kinds.set(key, [...(kinds.get(key) || []), group]);
  }
  return [...kinds.values()].map((same) => {
    const list = h("ul", { class: "attention" });
    const fill = () => { if (!list.childElementCount) list.append(...same.map(attentionLine)); };
    if (printing) fill();
    return h("details", { class: "reason", open: printing, ontoggle: fill }, h("summary", {}, badgeOf(same[0]), h("b", {}, plural(same.length, "group")),
      h("span", { class: "why" }, `${same.length > 1 ? "each " : ""}${STATUS[same[0].status][1]}`)), list);
  });
}

function total(key, join) {
  return times.map((_, index) => groups.reduce((sum, group) => (group[key][index] === null ? sum : join(sum || 0, group[key][index])), null));
}

function overview() {
  const committing = groups.filter((group) => !group.queue);
  const busiest = [...committing].sort((one, other) => other.total - one.total || one.rank - other.rank).slice(0, HEAT_ROWS);
  const behind = times.map((_, index) => groups.reduce((sum, group) => (group.wait[index] === null ? sum
    : (sum || 0) + (group.limit_ms !== null && group.wait[index] > group.limit_ms ? 1 : 0)), null));
  const limits = [...new Set(groups.map((group) => group.limit_ms))];
  const limit = limits.length === 1 && limits[0] !== null ? duration(limits[0]) : "its limit";
  const rate = total("commits", (sum, value) => sum + value);
  main.replaceChildren(...[fleet(), queuesCard(),
    card("Over time", h("div", { class: "figures" },
      figure("Unread records", "of all groups", areaChart("Unread records", total("lag", (sum, value) => sum + value), short, false, "one")),
      figure("Longest wait", "of any first unread record", areaChart("Longest wait", total("wait", Math.max), duration, true, "two")),
      figure("Groups behind", `a record unread for more than ${limit}`, areaChart("Groups behind", behind, short, false, "three")),
      figure("Commits", `of all groups, per ${duration(data.step)}`, barChart("Commits", rate.map((value) => value || 0))))),
    busiest.length ? card("Commits", figure("Commit heat map", busiest.length < committing.length ? `the ${HEAT_ROWS} busiest groups, ${duration(data.step)} a cell` : `${duration(data.step)} a cell`,
      heatMap("Commit heat map", busiest))) : "",
    h("section", { class: "card", id: "groups" }, h("div", { class: "head" }, h("h2", {}, "All groups"), found, search), chips(),
      h("div", { class: "scroll" }, h("table", { role: "table", class: "groups blocks" }, h("thead", { role: "rowgroup" }, tableHead), tableBody)), rest)].flat());
  fillTable();
}

function serviceCard(group, days) {
  if (!days.length) return "";
  return card("Service level", h("p", { class: "note left" }, `The time in which no partition waited longer than ${duration(group.limit_ms)}; the objective is ${Number((days[0].target * 100).toPrecision(6))} %. `
    + `The lag at the end of each ${duration(data.step)} counts for all of it.`),
  table([["Day (UTC)"], ["Within", 1], ["Over", 1], ["Budget left", 1], ["Longest wait", 1], ["Measured", 1]], days.map((day) => [day.day,
    h("span", { class: day.left < 0 ? "over" : "calm" }, percent(day.attained)), duration(day.over), day.left < 0 ? `\u2212${duration(-day.left)}` : duration(day.left), duration(day.worst),
    day.measured < DAY_S * 1000 ? duration(day.measured) : "whole day"])));
}

// What the rebalances in the period of the charts cost, of those that the page has.
function costOf(rebalances) {
  const rows = rebalances.filter((row) => row.at >= data.from && row.most !== null);
  const sum = (key) => duration(rows.reduce((total, row) => total + row[key], 0));
  return rows.length > 0 && h("p", { class: "note" }, `Partitions had no owner for at most ${sum("most")} since ${clock(data.from)} UTC, and for at least ${sum("least")}, by ${plural(rows.length, "rebalance")} with a known bound.`);
}

function groupPage(group) {
  const [offsets, inventory, rebalances, anomalies, slo, expiring, owners] = ["offsets", "inventory", "rebalances", "anomalies", "slo", "expiring", "owners"]
    .map((name) => rowsOf(group, name));
  const charts = [figure("Unread records", "", areaChart("Unread records", group.lag, short, false, "one")),
    figure("Waiting", "of the first unread record", areaChart("Waiting", group.wait, duration, true, "two")),
    figure("Commits", `per ${duration(data.step)}`, barChart("Commits", group.commits.map((value) => value || 0)))];
  if (rebalances.length) charts.push(figure("Rebalances", "members by generation", timeline("Rebalances", rebalances)));
  const facts = group.queue ? [...queueFacts(group), ["Partitions", count(group.partitions)]] : [["unread records", unread(group, count)], ["waiting", duration(group.lag_ms)], ["read up in", drained(group)], ["last commit", ago(group.age)],
    ["members", count(group.members)], ["partitions", count(group.partitions)], ["generation", group.generation === null ? DASH : group.generation],
    ["assignor", group.protocol || DASH]];
  main.replaceChildren(
    h("nav", {}, h("a", { href: "#" }, "\u2190 All groups"), h("span", { class: "note" }, "Esc: back. \u2190 \u2192: previous and next group")),
    h("section", { class: "card group" }, h("h1", {}, nameOf(group), " ", badgeOf(group)), h("p", { class: "note" }, `${capital(why(group))}. ${capital(sentence(group))}`), alsoOf(group), consoleLink(group),
      h("dl", {}, facts.map(([label, value]) => h("div", {}, h("dt", {}, label), h("dd", {}, value))))),
    // Only stored tables know the history of a queue.
    group.queue && group.lag.every((value) => value === null) ? "" : card("Over time", h("div", { class: "figures" }, charts)),
    data.compared_to === null || group.queue ? "" : card(`Changes since ${clock(data.compared_to)} UTC`, partitionChanges(group)),
    serviceCard(group, slo),
    ...(group.queue ? queueCards(group) : [card("Offsets", table([["Topic"], ["Partition", 1], ["Status"], ["Committed offset", 1], ["Unread", 1], ["Waiting", 1], ["Read/s", 1], ["Added/s", 1], ["Read up in", 1], ["Last commit", 1]],
      offsets.map((row) => [row.topic, row.partition, badge(row.status), row.committed ?? DASH, unread(row, count), duration(row.lag_ms), perSecond(row.consumed), perSecond(row.produced), drained(row),
        ago(row.commit === null ? null : Math.max(0, data.as_of - row.commit))]), "No committed offsets."), more(group.partitions, offsets.length, "partitions"))]),
    expiring.length ? card("Offsets that expire", table([["Topic"], ["Partition", 1], ["Committed offset", 1], ["Expires (UTC)"], ["In", 1]],
      expiring.map((row) => [row.topic, row.partition, row.committed, clock(row.at), row.in < 0 ? "due" : duration(row.in)])), more(group.expiring_total, expiring.length, "offsets")) : "",
    owners.length ? card("Who read what when", table([["Topic"], ["Partitions"], ["Client"], ["Host"], ["From (UTC)"], ["Until (UTC)"], ["Commits", 1]],
      owners.map((row) => [row.topic, row.partitions, h("span", { title: row.member }, row.client), row.host, clock(row.from, true),
        row.until === null ? h("span", { class: "calm" }, "now") : clock(row.until, true), count(row.commits)])), more(group.owners_total, owners.length, "times")) : "",
    card("Members", table([["Client"], ["Host"], ["Instance"], ["Assigned"], ["Member"], ["First seen (UTC)"], ["Last listed (UTC)"]],
      inventory.map((row) => [row.client, row.host, row.instance || DASH, row.assigned || DASH, h("code", {}, row.member), clock(row.first), row.active ? h("span", { class: "calm" }, "member now") : clock(row.last)]),
      group.age === null ? "No member is recorded." : "The group commits without members."), more(group.inventory_total, inventory.length, "members")),
    rebalances.length ? card("Rebalances", table([["Time (UTC)"], ["What"], ["Generation", 1], ["Members", 1], ["Joined", 1], ["Left", 1], ["Without owner", 1], ["Previous lasted", 1]],
      [...rebalances].reverse().slice(0, 25).map((row) => [clock(row.at, true), row.kind, row.generation, row.members, row.joined ? `+${row.joined}` : "", row.left ? `\u2212${row.left}` : "", unowned(row), duration(row.lasted)])), costOf(rebalances),
    more(group.rebalances_total, 25, "rebalances")) : "",
    anomalies.length ? card("Anomalies", table([["Time (UTC)"], ["What"], ["Topic"], ["Partition", 1], ["Committed", 1], ["Before", 1]],
      anomalies.map((row) => [clock(row.at, true), row.kind.replace("_", " ") + (row.lost ? ` (${count(row.lost)})` : ""), row.topic, row.partition, row.committed, row.previous ?? DASH])), more(group.anomalies_total, anomalies.length, "anomalies")) : "");
}

function current() {
  const match = location.hash.match(/^#group=(.*)$/);
  if (!match) return undefined;
  try { return byName.get(decodeURIComponent(match[1])); } catch { return undefined; }
}

function show() {
  hideTip();
  const group = current();
  document.title = group ? `${group.name} \u2013 consumer group` : data.title;
  if (group) groupPage(group); else overview();
  scrollTo(0, group ? 0 : state.scroll);
}

// Keyboard, theme, age.

function neighbour(step) {
  const rows = chosen(), at = rows.indexOf(current());
  if (at >= 0 && rows[at + step]) go(rows[at + step].name);
}
function select(step) {
  const rows = tableBody.children;
  if (!rows.length) return;
  state.selected = Math.min(Math.max(state.selected + step, 0), rows.length - 1);
  for (const [index, row] of [...rows].entries()) row.classList.toggle("selected", index === state.selected);
  rows[state.selected].scrollIntoView({ block: "nearest" });
}
function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target === search;
  if (event.key === "Escape") {
    if (help.open) help.close();
    else if (current()) location.hash = "";
    else { search.value = state.query = ""; state.status = null; search.blur(); overview(); }
    return;
  }
  if (typing && event.key !== "Enter" && !event.key.startsWith("Arrow")) return;
  const inGroup = Boolean(current());
  const actions = {
    "/": () => { if (inGroup) { location.hash = ""; setTimeout(() => search.focus(), 50); } else search.focus(); },
    "?": () => help.showModal(),
    t: nextTheme,
    j: () => select(1), ArrowDown: () => select(1), k: () => select(-1), ArrowUp: () => select(-1),
    ArrowLeft: () => inGroup && neighbour(-1), ArrowRight: () => inGroup && neighbour(1),
    Enter: () => { const row = tableBody.children[typing ? Math.max(state.selected, 0) : state.selected]; if (row) go(row.dataset.group); },
  };
  const action = actions[event.key];
  if (!action || (inGroup && ["j", "k", "Enter", "ArrowUp", "ArrowDown"].includes(event.key))) return;
  if (typing && (event.key === "ArrowLeft" || event.key === "ArrowRight")) return;
  if (event.key === "Enter" && event.target.closest("a,button,summary")) return;
  event.preventDefault();
  action();
}
const help = document.getElementById("help");
document.addEventListener("keydown", onKey);
document.getElementById("keys").addEventListener("click", () => help.showModal());

const THEMES = ["auto", "light", "dark"];
const themeButton = document.getElementById("theme");
function remembered() { try { return localStorage.getItem("korvet-theme"); } catch { return null; } }
function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  themeButton.textContent = `Theme: ${theme}`;
  try { localStorage.setItem("korvet-theme", theme); } catch { /* A page without storage forgets it. */ }
}
function nextTheme() {
  setTheme(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length]);
  if (groups.length) show();
}
themeButton.addEventListener("click", nextTheme);
setTheme(THEMES.includes(remembered()) ? remembered() : "auto");
for (const query of [matchMedia("(prefers-color-scheme: dark)"), narrow]) query.addEventListener("change", () => { if (groups.length) show(); });

const age = document.getElementById("age");
const tick = () => { age.textContent = ` (${ago(Math.max(0, Date.now() - data.as_of))})`; };
tick();
setInterval(tick, 15000);
addEventListener("scroll", () => { if (!current()) state.scroll = scrollY; hideTip(); }, { passive: true });
addEventListener("hashchange", show);
// Paper is white: canvases and charts are drawn again in the light theme while the page is printed.
let themeOnScreen = "auto";
addEventListener("beforeprint", () => {
  if (!printing) themeOnScreen = document.documentElement.dataset.theme;
  document.documentElement.dataset.theme = "light";
  printing = true;
  if (groups.length) show();
});
addEventListener("afterprint", () => {
  document.documentElement.dataset.theme = themeOnScreen;
  printing = false;
  if (groups.length) show();
});
if (groups.length) show();
// Every visible figure: its title and picture.
window.korvetFigures = () => Promise.all([...document.querySelectorAll("figure")].map(async (box) => {
  const title = box.querySelector("figcaption b").textContent;
  return [title, await pictureOf(title, box.querySelector("svg[role=img],canvas"))];
}));
// For `korvet report --png`, which reads the text of the loaded page: images delay the event `load`.
if (location.hash === "#pictures") {
  korvetFigures().then((figures) => {
    const text = Object.assign(document.createElement("pre"), { id: "pictures", hidden: true });
    text.textContent = JSON.stringify({ height: document.documentElement.scrollHeight, figures });
    document.body.append(text);
  });
}
})();
