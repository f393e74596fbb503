// Behaviour of the report's page. Vega draws the figures; all numbers are in the page's data.
"use strict";

const page = JSON.parse(document.getElementById("page-data").textContent);
const $ = (id) => document.getElementById(id);
const ROWS_PER_PAGE = 25, PIXELS_PER_POINT = 1.6;

// Decode base64 text as 16-bit numbers.
function unpack(text) {
  return new Uint16Array(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer);
}

const isomorphs = page.space && unpack(page.space.isomorphs);
for (const data of page.datasets) {
  data.codes = ["accuracies", "low", "high"].map((name) => unpack(data[name]));
  data.position = new Map(data.networks.map(({ id }, index) => [String(id), index]));
}
let dataset = page.datasets[0], current = 0;

function element(tag, text = "", attributes = {}) {
  const node = document.createElement(tag);
  node.textContent = text;
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

// ---- figures ----

// Draw a figure with as many columns of panels as fit.
async function drawFigure(figure) {
  const chart = figure.querySelector(".chart"), width = chart.clientWidth || 1100;
  const spec = JSON.parse(figure.querySelector("script").textContent);
  const columns = Math.max(1, Math.floor(width / (PIXELS_PER_POINT * spec.usermeta.columnWidth)));
  if (figure.dataset.columns === String(columns)) return;
  figure.dataset.columns = columns;
  spec.columns = Math.min(columns, spec.concat.length);
  const actions = { export: true, source: false, compiled: false, editor: false };
  const { view } = await vegaEmbed(chart, spec, { renderer: "svg", mode: "vega-lite", actions });
  const svg = chart.querySelector("svg.marks");
  svg.style.width = `${PIXELS_PER_POINT * svg.getAttribute("width")}px`;
  view.addEventListener("click", (_, item) => choose(item?.datum?.architecture, true));
  figure.dataset.drawn = "true";
}

// Figures are drawn when they come near the window, one at a time, so that the page stays responsive.
let queue = Promise.resolve();
const near = new Set();
const observer = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (isIntersecting) near.add(target); else near.delete(target);
    if (isIntersecting) queue = queue.then(() => drawFigure(target));
  }
}, { rootMargin: "400px" });

function drawNearFigures() {
  for (const figure of near) queue = queue.then(() => drawFigure(figure));
}

// ---- table of networks ----

let order = [], sortedBy = null, isAscending = false, firstRow = 0;

function sortTable(column) {
  isAscending = column === sortedBy && !isAscending;
  sortedBy = column;
  showTable();
}

function showTable() {
  const filter = $("filter").value.trim().toLowerCase();
  order = dataset.networks.map((_, index) => index);
  if (filter) order = order.filter((index) => `${dataset.networks[index].label} ${dataset.networks[index].spec}`.toLowerCase().includes(filter));
  if (sortedBy !== null) {
    const values = dataset.columns[sortedBy].accuracies, sign = isAscending ? 1 : -1;
    order.sort((a, b) => (values[a] === null) - (values[b] === null) || sign * (values[a] - values[b]) || a - b);
  }
  firstRow = Math.min(firstRow, Math.max(0, order.length - 1));
  const head = element("tr");
  head.append(element("th", "network"));
  dataset.columns.forEach((column, index) => {
    const button = element("button", column.label, { type: "button" });
    button.addEventListener("click", () => { firstRow = 0; sortTable(index); });
    const cell = element("th", "", index === sortedBy ? { "aria-sort": isAscending ? "ascending" : "descending" } : {});
    cell.append(button);
    head.append(cell);
  });
  const rows = order.slice(firstRow, firstRow + ROWS_PER_PAGE).map((index) => {
    const row = element("tr"), name = element("th");
    name.append(networkLink(index));
    row.append(name, ...dataset.columns.map((column) => accuracyCell(column.texts[index], column.tied[index])));
    return row;
  });
  const table = $("network-table");
  table.tHead.replaceChildren(head);
  table.tBodies[0].replaceChildren(...rows);
  $("page-range").textContent = order.length ? `${firstRow + 1} to ${Math.min(firstRow + ROWS_PER_PAGE, order.length)} of ${order.length}` : "no network";
  $("page-previous").disabled = firstRow === 0;
  $("page-next").disabled = firstRow + ROWS_PER_PAGE >= order.length;
}

function networkLink(index) {
  const { id, label } = dataset.networks[index];
  const link = element("a", label, { href: addressOf(id) });
  link.addEventListener("click", (event) => { event.preventDefault(); choose(id, true); });
  return link;
}

// Show an accuracy, such as "95.1 [94.1, 96.0]", with the interval in a smaller font.
function accuracyCell(text, isTied = false, tag = "td") {
  const cell = element(tag, "", { class: "accuracy" }), [accuracy, ...interval] = text.split(" ");
  cell.append(element(isTied ? "strong" : "span", accuracy));
  if (interval.length) cell.append(" ", element("small", interval.join(" ")));
  return cell;
}

// ---- one network ----

// Show the network with an id (for a cell, the evaluated cell of its isomorphism class), and return whether it exists.
function choose(id, scroll = false) {
  if (id === undefined || id === "") return false;
  const text = String(id).trim().replace(/^#/, "");
  const bySpec = dataset.networks.findIndex(({ spec }) => spec && spec === text);
  const representative = bySpec >= 0 ? String(dataset.networks[bySpec].id) : isomorphs && /^\d+$/.test(text) ? isomorphs[Number(text)] : text;
  const exists = dataset.position.has(String(representative));
  $("network-error").textContent = exists ? "" : isomorphs && representative === undefined ? "There is no such cell." : "This network was not evaluated.";
  if (!exists) return false;
  current = dataset.position.get(String(representative));
  showNetwork(isomorphs && bySpec < 0 && Number(text) !== Number(representative) ? `#${text} is isomorphic to this cell. ` : "");
  history.replaceState(null, "", addressOf(dataset.networks[current].id));
  if (scroll) $("network").scrollIntoView({ block: "start" });
  return true;
}

function addressOf(id) {
  return `#${new URLSearchParams({ dataset: dataset.name, network: id })}`;
}

function showNetwork(note = "") {
  const { id, label, rank_text, spec, operations } = dataset.networks[current];
  $("network-name").textContent = label;
  // A cell string may break only between the nodes of the cell.
  $("network-spec").replaceChildren(...spec.split("+").flatMap((part, index) => (index ? ["+", element("wbr"), part] : [part])));
  $("network-note").textContent = note;
  $("network-rank").textContent = rank_text;
  $("network-input").value = id;
  if (operations.length) queue = queue.then(() => drawCell(operations));
  const rows = new Map(), n = dataset.networks.length;
  dataset.evaluations.forEach(({ key, strength }, index) => {
    const [accuracy, low, high] = dataset.codes.map((codes) => digits(codes[index * n + current]));
    if (!accuracy) return;
    if (!rows.has(key)) rows.set(key, element("dd"));
    const cell = accuracyCell(low ? `${accuracy} [${low}, ${high}]` : accuracy, false, "span");
    if (strength) cell.prepend(element("small", strength), " ");
    rows.get(key).append(cell);
  });
  $("network-accuracies").replaceChildren(...[...rows].flatMap(([key, row]) => [element("dt", key), row]));
}

// Return the number that a code stands for, such as "95.3" for 953; empty if the number is missing.
function digits(code) {
  return code === page.missing ? "" : String(code).padStart(2, "0").replace(/.$/, ".$&");
}

let cellView = null;

async function drawCell(operations) {
  if (!cellView) {
    const spec = JSON.parse($("cell-drawing").textContent);
    spec.params[0].value = operations;
    cellView = (await vegaEmbed($("cell"), spec, { renderer: "svg", mode: "vega-lite", actions: false })).view;
  }
  await cellView.signal("operations", operations).runAsync();
  $("cell").querySelector("svg").setAttribute("aria-label", `Cell: ${operations.join(", ")}`);
}

// ---- dataset, address and events ----

function chooseDataset(name) {
  dataset = page.datasets.find((candidate) => candidate.name === name) ?? dataset;
  $("dataset").value = dataset.name;
  [sortedBy, firstRow, current] = [null, 0, 0];
  for (const section of document.querySelectorAll("section[data-dataset]")) section.hidden = section.dataset.dataset !== dataset.name;
  showTable();
  showNetwork();
}

function followAddress() {
  const state = new URLSearchParams(location.hash.slice(1));
  if (state.has("dataset")) chooseDataset(state.get("dataset"));
  if (state.has("network")) choose(state.get("network"));
}

function turnPage(step) {
  firstRow = Math.max(0, firstRow + step * ROWS_PER_PAGE);
  showTable();
}

$("dataset").addEventListener("change", (event) => chooseDataset(event.target.value));
$("filter").addEventListener("input", () => { firstRow = 0; showTable(); });
$("page-previous").addEventListener("click", () => turnPage(-1));
$("page-next").addEventListener("click", () => turnPage(1));
$("network-form").addEventListener("submit", (event) => { event.preventDefault(); choose($("network-input").value); });
document.querySelectorAll("figure[data-figure]").forEach((figure) => observer.observe(figure));
addEventListener("resize", drawNearFigures);
addEventListener("hashchange", followAddress);
addEventListener("beforeprint", () => document.querySelectorAll("section:not([hidden]) figure[data-figure]").forEach(drawFigure));
chooseDataset(dataset.name);
followAddress();
