// The page's behaviour. Charts are plotly's, cells are the drawing in #cell-drawing; here they are filled and shown.
"use strict";

const page = JSON.parse(document.getElementById("page-data").textContent);
const $ = (id) => document.getElementById(id);

// ---- numbers -------------------------------------------------------------------------------------------------------

function unpack(text, Kind) {
  return new Kind(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer);
}

// Without a space of cells there is no explorer, and architectures have names instead of indices.
const space = page.space;
const nOperations = space ? space.operations.length : 0;
const idByCode = space ? unpack(space.ids, Uint16Array) : [];
const isomorphById = space ? unpack(space.isomorphs, Uint16Array) : [];
const codeById = new Uint16Array(idByCode.length);
idByCode.forEach((id, code) => { codeById[id] = code; });

const datasets = page.datasets.map((packed) => {
  const ids = space ? unpack(packed.architectures, Uint16Array) : packed.architectures;
  const all = unpack(packed.accuracies, Uint16Array);
  return {
    name: packed.name,
    best: packed.best,
    ids,
    rowById: new Map(Array.from(ids, (id, row) => [id, row])),
    kernelParameters: space ? unpack(packed.kernelParameters, Uint8Array) : null,
    columns: packed.columns.map((column, place) => ({
      ...column, values: all.subarray(place * ids.length, (place + 1) * ids.length),
    })),
    scores: packed.scores.map((score) => ({ ...score, values: unpack(score.values, Float32Array) })),
  };
});
let dataset = datasets[0];

// A figure may be drawn when another dataset has been chosen.
function datasetOf(block) {
  const { dataset: name } = block.closest("section").dataset;
  return datasets.find((other) => other.name === name);
}

function fractions(column) {
  return Array.from(column.values, (value) => (value === page.missing ? null : value / page.resolution));
}

function rank(values, row, missing) {
  let better = 0, tied = 0, held = 0;
  for (const value of values) {
    if (value === missing || Number.isNaN(value)) continue;
    held += 1;
    if (value > values[row]) better += 1;
    if (value === values[row]) tied += 1;
  }
  return { rank: better + 1, tied, of: held };
}

const percent = (value) => `${(100 * value).toFixed(2)}%`;
const count = (value) => value.toLocaleString("en");

// As `change_texts` of the figures: gains with a plus sign, none as zero without a sign.
function signed(value) {
  const text = value.toFixed(2);
  return Number(text) === 0 ? "0.00" : value > 0 ? `+${text}` : text;
}

// ---- light and dark ------------------------------------------------------------------------------------------------

const systemDark = matchMedia("(prefers-color-scheme: dark)");

function recall() {
  try { return localStorage.getItem("robust201-theme") || "auto"; } catch { return "auto"; }
}

function setTheme(choice) {
  $("theme").value = choice;
  const dark = choice === "dark" || (choice === "auto" && systemDark.matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  redrawAll();
}

// Paper is light.
function prepareForPaper() {
  document.documentElement.dataset.theme = "light";
  document.querySelectorAll("section:not([hidden]) figure[data-figure]").forEach(drawFigure);
  if (space) showNeighbours();
}

function themed(text) {
  const style = getComputedStyle(document.documentElement);
  return text.replaceAll(page.ink, style.getPropertyValue("--ink").trim())
    .replaceAll(page.grid, style.getPropertyValue("--grid").trim());
}

// ---- figures -------------------------------------------------------------------------------------------------------

const webgl = Boolean(document.createElement("canvas").getContext("webgl"));
const config = { responsive: true, displaylogo: false, modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]] };

function drawFigure(block) {
  block.dataset.drawn = "true";
  const content = JSON.parse(themed(block.querySelector("script").textContent));
  const menu = block.querySelector("select");
  const view = content.views[menu ? menu.selectedIndex : 0];
  const { data, layout } = structuredClone(content.figures[view.figure]);
  const chart = block.querySelector(".chart");
  if (view.column !== null) {
    const own = datasetOf(block), column = own.columns[view.column];
    const clean = own.columns.find((other) => other.key === "clean");
    Object.assign(data[0], { x: fractions(clean), y: fractions(column), customdata: Array.from(own.ids) });
    if (space) data[0].marker.color = Array.from(own.kernelParameters);
    layout.yaxis.title = { text: `accuracy, ${view.label}` };
  }
  if (!webgl) for (const trace of data) if (trace.type === "scattergl") trace.type = "scatter";
  show(chart, data, layout);
  chart.setAttribute("aria-label", [block.querySelector("h3").textContent, view.label].filter(Boolean).join(": "));
  if (layout.meta.cells && !chart.dataset.listens) {
    chart.dataset.listens = "true";
    chart.on("plotly_click", (event) => chooseCell(Number(event.points[0].customdata)));
  }
}

function show(chart, data, layout) {
  layout.template = JSON.parse(themed(JSON.stringify(page.template)));
  chart.style.minWidth = `${Math.min(layout.meta.width, 1150)}px`;
  chart.style.height = `${layout.height}px`;
  chart.style.maxWidth = layout.meta.grows ? "none" : `${layout.meta.width}px`;
  return Plotly.react(chart, data, layout, config);
}

// Figures are drawn when they come near the window, one at a time, so that the page answers in between.
const waiting = new Set();

function drawNext() {
  const [block] = waiting;
  if (block === undefined) return;
  waiting.delete(block);
  drawFigure(block);
  if (waiting.size) setTimeout(drawNext);
}

function request(block) {
  if (waiting.size === 0) setTimeout(drawNext);
  waiting.add(block);
}

const near = new Set();
const observer = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (!isIntersecting) near.delete(target);
    else {
      near.add(target);
      if (target.dataset.drawn !== "true") request(target);
    }
  }
}, { rootMargin: "400px" });

function redrawAll() {
  for (const block of document.querySelectorAll("figure[data-drawn]")) block.dataset.drawn = "false";
  near.forEach(request);
  if (space && $("explorer").dataset.ready) showNeighbours();
}

// ---- cells ---------------------------------------------------------------------------------------------------------

function operationsOf(id) {
  let code = codeById[id];
  const operations = [];
  for (let edge = 0; edge < space.edges.length; edge += 1) {
    operations.unshift(code % nOperations);
    code = Math.floor(code / nOperations);
  }
  return operations;
}

function idOf(operations) {
  return idByCode[operations.reduce((code, operation) => nOperations * code + operation, 0)];
}

function specOf(id) {
  const names = operationsOf(id).map((operation, edge) => [space.operations[operation], space.edges[edge]]);
  return [1, 2, 3].map((node) => `|${names.filter(([, edge]) => edge[1] === node)
    .map(([name, edge]) => `${name}~${edge[0]}`).join("|")}|`).join("+");
}

function drawCell(place, id) {
  if (!place.firstElementChild) {
    place.append($("cell-drawing").content.cloneNode(true));
  }
  const operations = operationsOf(id);
  for (const part of place.querySelectorAll("[data-edge]")) {
    const shown = space.operations[operations[part.dataset.edge]] === part.dataset.operation;
    part.style.display = shown ? "" : "none";
  }
  const words = operations.map((operation, edge) => `${space.edgeLabels[edge]} ${space.labels[operation]}`);
  place.querySelector("svg").setAttribute("aria-label", `Cell ${id}: ${words.join(", ")}`);
}

// ---- explorer ------------------------------------------------------------------------------------------------------

const menus = (space ? space.edges : []).map((_, edge) => $(`edge-${edge}`));
let cell = 0;

function parseCell(text) {
  // In an address a plus sign that is not encoded means a space.
  const trimmed = text.trim();
  if (/^[0-9]{1,5}$/.test(trimmed) && Number(trimmed) < idByCode.length) return Number(trimmed);
  const names = trimmed.replace(/[+\s]/g, "").split("|").filter(Boolean).map((part) => part.split("~")[0]);
  const operations = names.map((name) => space.operations.indexOf(name));
  return names.length === space.edges.length && !operations.includes(-1) ? idOf(operations) : null;
}

function chooseCell(id, { scroll = true } = {}) {
  cell = id;
  operationsOf(id).forEach((operation, edge) => { menus[edge].selectedIndex = operation; });
  showCell();
  tellAddress();
  if (scroll) $("explorer").scrollIntoView({ block: "start" });
}

function tellAddress() {
  const told = { dataset: dataset.name, ...(space && { cell: String(cell) }) };
  history.replaceState(null, "", `#${new URLSearchParams(told)}`);
}

function element(tag, text = "", attributes = {}) {
  const made = document.createElement(tag);
  made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

function showCell() {
  drawCell($("cell"), cell);
  const isomorph = isomorphById[cell];
  const row = dataset.rowById.get(isomorph);
  $("cell-id").textContent = `#${cell}`;
  $("cell-spec").textContent = specOf(cell);
  $("cell-input").value = String(cell);
  const same = $("cell-isomorph");
  same.replaceChildren();
  if (isomorph === cell) same.textContent = "It stands for its isomorphism class.";
  else {
    same.append("Isomorphic to ");
    const link = element("a", `#${isomorph}`, { href: `#cell=${isomorph}`, "data-cell": isomorph });
    same.append(link, ", which was evaluated in its stead.");
  }
  const numbers = $("cell-numbers");
  if (row === undefined) {
    numbers.replaceChildren(element("p", `Its class was not evaluated on ${dataset.name}.`, { class: "warning" }));
  } else {
    const axes = [...new Set(dataset.columns.map((column) => column.axis))].filter(Boolean);
    numbers.replaceChildren(scoreList(row), ...axes.map((axis) => table(axis, row)));
  }
  showNeighbours();
}

function scoreList(row) {
  const list = element("dl", "", { class: "scores" });
  const kernel = element("div");
  kernel.append(element("dt", "kernel parameters"), element("dd", String(dataset.kernelParameters[row])));
  for (const score of dataset.scores) {
    const item = element("div"), value = score.values[row];
    const place = rank(score.values, row);
    item.append(element("dt", `${score.label} accuracy`), element("dd", Number.isNaN(value) ? "–" : percent(value)));
    const shared = place.tied > 1 ? `, shared by ${count(place.tied)}` : "";
    if (!Number.isNaN(value)) item.append(element("dd", `rank ${count(place.rank)} of ${count(place.of)}${shared}`));
    list.append(item);
  }
  list.append(kernel);
  return list;
}

function table(axis, row) {
  const columns = dataset.columns.filter((column) => column.axis === axis);
  const strengths = [...new Set(columns.map((column) => column.strength))].sort((a, b) => a - b);
  const keys = [...new Set(columns.map((column) => column.key))];
  const made = element("table", "", { class: "numbers" }), body = element("tbody"), head = element("tr");
  made.append(element("caption", `Accuracy in %, and below it the rank (= where others share it), by ${axis}`));
  head.append(element("th", ""), ...strengths.map((strength) => element("th", String(strength), { scope: "col" })));
  for (const key of keys) {
    const line = element("tr");
    line.append(element("th", key, { scope: "row" }));
    for (const strength of strengths) {
      const column = columns.find((other) => other.key === key && other.strength === strength);
      const box = element("td");
      if (column && column.values[row] !== page.missing) {
        box.append((100 * column.values[row] / page.resolution).toFixed(2));
        const place = rank(column.values, row, page.missing);
        box.append(element("small", `${place.tied > 1 ? "=" : ""}${count(place.rank)}`));
      }
      line.append(box);
    }
    body.append(line);
  }
  const header = element("thead");
  header.append(head);
  made.append(header, body);
  const frame = element("div", "", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Accuracy by ${axis}` });
  frame.append(made);
  return frame;
}

function showNeighbours() {
  const score = dataset.scores[$("neighbour-score").selectedIndex];
  const own = operationsOf(cell), row = dataset.rowById.get(isomorphById[cell]);
  const { data, layout } = JSON.parse(themed(JSON.stringify(page.neighbours)));
  const z = [], text = [], hovertext = [];
  let reach = 1;
  own.forEach((kept, edge) => {
    z.push([]); text.push([]); hovertext.push([]);
    for (let operation = 0; operation < nOperations; operation += 1) {
      const id = isomorphById[idOf(own.map((other, place) => (place === edge ? operation : other)))];
      const other = dataset.rowById.get(id);
      const known = row !== undefined && other !== undefined && score !== undefined;
      const change = operation === kept ? 0 : known ? 100 * (score.values[other] - score.values[row]) : NaN;
      const held = !Number.isNaN(change);
      if (held) reach = Math.max(reach, Math.abs(change));
      z[edge].push(held ? change : null);
      const written = held ? signed(change) : "";
      text[edge].push(operation === kept ? "•" : written);
      hovertext[edge].push(operation === kept ? "the cell's own operation" : `${written} percentage points`);
    }
  });
  Object.assign(data[0], { z, text, hovertext, zmin: -reach, zmax: reach });
  show($("neighbour-chart"), data, layout);
}

// ---- what the reader does ------------------------------------------------------------------------------------------

function chooseDataset(name) {
  dataset = datasets.find((other) => other.name === name) || datasets[0];
  $("dataset").value = dataset.name;
  for (const section of document.querySelectorAll("section[data-dataset]")) {
    section.hidden = section.dataset.dataset !== dataset.name;
  }
  // The observer does not tell of figures that were hidden and shown again within one frame.
  waiting.clear();
  for (const block of near) if (block.dataset.drawn !== "true" && !block.closest("section").hidden) request(block);
  if (!space) return;
  const menu = $("neighbour-score"), kept = menu.value;
  menu.replaceChildren(...dataset.scores.map((score) => element("option", score.label)));
  if (dataset.scores.some((score) => score.label === kept)) menu.value = kept;
  showCell();
}

function followAddress({ scroll = true } = {}) {
  const asked = new URLSearchParams(location.hash.slice(1));
  if (location.hash === "#terms") $("terms").open = true;
  if (asked.has("dataset")) chooseDataset(asked.get("dataset"));
  const id = space && asked.has("cell") ? parseCell(asked.get("cell")) : null;
  if (id !== null) chooseCell(id, { scroll });
}

function startExplorer() {
  $("neighbour-score").addEventListener("change", showNeighbours);
  for (const menu of menus) {
    menu.addEventListener("change", () => chooseCell(idOf(menus.map((other) => other.selectedIndex)), { scroll: false }));
  }
  $("cell-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const id = parseCell($("cell-input").value);
    const last = idByCode.length - 1;
    $("cell-refusal").textContent = id === null ? `Expected an index from 0 to ${last}, or a cell string.` : "";
    if (id !== null) chooseCell(id, { scroll: false });
  });
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-cell]");
    if (!link) return;
    event.preventDefault();
    chooseCell(Number(link.dataset.cell));
  });
  for (const place of document.querySelectorAll(".card [data-draw]")) drawCell(place, Number(place.dataset.draw));
}

function showBestCell() {
  cell = dataset.best;
  operationsOf(cell).forEach((operation, edge) => { menus[edge].selectedIndex = operation; });
  showCell();
  $("explorer").dataset.ready = "true";
}

function start() {
  if (space) startExplorer();
  $("dataset").addEventListener("change", (event) => { chooseDataset(event.target.value); tellAddress(); });
  $("theme").addEventListener("change", (event) => {
    try { localStorage.setItem("robust201-theme", event.target.value); } catch { /* a page without storage forgets */ }
    setTheme(event.target.value);
  });
  systemDark.addEventListener("change", () => setTheme($("theme").value));
  for (const block of document.querySelectorAll("figure[data-figure]")) {
    const menu = block.querySelector("select");
    if (menu) menu.addEventListener("change", () => drawFigure(block));
    observer.observe(block);
  }
  addEventListener("hashchange", () => followAddress());
  addEventListener("beforeprint", prepareForPaper);
  addEventListener("afterprint", () => setTheme($("theme").value));
  chooseDataset(datasets[0].name);
  if (space) showBestCell();
  setTheme(recall());
  followAddress();
}

start();
