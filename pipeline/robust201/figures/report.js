// Behaviour of the report's page. Vega draws the charts; cells are copies of the drawing in #cell-drawing.
"use strict";

const page = JSON.parse(document.getElementById("page-data").textContent);
const $ = (id) => document.getElementById(id);

// ---- numbers -------------------------------------------------------------------------------------------------------

// Decode base64 text as a typed array.
function unpack(text, ArrayType) {
  return new ArrayType(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer);
}

// If architectures are not cells, there is no explorer, and architectures have names instead of indices. The code of a
// cell is the number whose digits, in base `nOperations`, are the operations on its edges.
const space = page.space;
const nOperations = space ? space.operations.length : 0;
const idByCode = space ? unpack(space.ids, Uint16Array) : [];
const isomorphById = space ? unpack(space.isomorphs, Uint16Array) : [];
const codeById = new Uint16Array(idByCode.length);
idByCode.forEach((id, code) => { codeById[id] = code; });

const datasets = page.datasets.map((packed) => {
  const ids = space ? unpack(packed.architectures, Uint16Array) : packed.architectures;
  const accuracies = unpack(packed.accuracies, Uint16Array);
  return {
    name: packed.name,
    best: packed.best,
    images: packed.images,
    fewCorrect: packed.fewCorrect,
    front: packed.front && unpack(packed.front, Uint8Array),
    ids,
    rowById: new Map(Array.from(ids, (id, row) => [id, row])),
    kernelParameters: space ? unpack(packed.kernelParameters, Uint8Array) : null,
    columns: packed.columns.map((column, index) => ({
      ...column, values: accuracies.subarray(index * ids.length, (index + 1) * ids.length),
    })),
    scores: packed.scores.map((score) => ({ ...score, values: unpack(score.values, Float32Array) })),
  };
});
let dataset = datasets[0];

// Return the dataset of a figure, which may be drawn while another dataset is selected.
function datasetOf(block) {
  const { dataset: name } = block.closest("section").dataset;
  return datasets.find((candidate) => candidate.name === name);
}

// Return a column's accuracies as fractions; missing accuracies are null.
function fractions(column) {
  return Array.from(column.values, (value) => (value === page.missing ? null : value / page.resolution));
}

// Return the rank of a row's value, the number of rows that have this value, and the number of rows with any value.
function rank(values, row, missing) {
  let nBetter = 0, nTied = 0, nRanked = 0;
  for (const value of values) {
    if (value === missing || Number.isNaN(value)) continue;
    nRanked += 1;
    if (value > values[row]) nBetter += 1;
    if (value === values[row]) nTied += 1;
  }
  return { rank: nBetter + 1, nTied, nRanked };
}

// Return the 95% interval of an accuracy in percent, as `statistics.intervals.accuracy_intervals` computes it: Wilson's
// interval or, if few images are correct or few are wrong, the exact interval, whose ends are in the page's data.
function formatInterval(value, { images, fewCorrect }) {
  const nCorrect = Math.round(value * images), nWrong = images - nCorrect;
  const format = (low, high) => `[${(100 * low).toFixed(1)}, ${(100 * high).toFixed(1)}]`;
  if (nCorrect < fewCorrect.length) return format(...fewCorrect[nCorrect]);
  if (nWrong < fewCorrect.length) return format(1 - fewCorrect[nWrong][1], 1 - fewCorrect[nWrong][0]);
  const z = 1.959963984540054, spread = z * z / images, middle = (value + spread / 2) / (1 + spread);
  const half = z / (1 + spread) * Math.sqrt(value * (1 - value) / images + spread / (4 * images));
  return format(Math.max(0, middle - half), Math.min(1, middle + half));
}

const formatPercent = (value) => `${(100 * value).toFixed(2)}%`;
const formatCount = (value) => value.toLocaleString("en");

// Format a change as `change_texts` does in figures: gains have a plus sign, and zero has no sign.
function formatChange(value) {
  const text = value.toFixed(2);
  return Number(text) === 0 ? "0.00" : value > 0 ? `+${text}` : text;
}

// ---- light and dark ------------------------------------------------------------------------------------------------

const systemDark = matchMedia("(prefers-color-scheme: dark)");

function storedTheme() {
  try { return localStorage.getItem("robust201-theme") || "auto"; } catch { return "auto"; }
}

function setTheme(choice) {
  $("theme").value = choice;
  const isDark = choice === "dark" || (choice === "auto" && systemDark.matches);
  document.documentElement.dataset.theme = isDark ? "dark" : "light";
}

// Switch to the light theme for printing, and draw all visible figures.
function prepareForPrint() {
  document.documentElement.dataset.theme = "light";
  document.querySelectorAll("section:not([hidden]) figure[data-figure]").forEach((block) => { if (block.dataset.drawn !== "true") drawFigure(block); });
}

// ---- figures -------------------------------------------------------------------------------------------------------

const PIXELS_PER_POINT = 1.6;
const views = new Map();  // by chart element: the promise of the result of vegaEmbed

// Draw a specification, in which placeholders such as "@low" are first replaced with `values`. `tables` are the rows of
// the specification's named datasets.
function draw(chart, spec, values = {}, tables = {}) {
  const placeholders = new Map(Object.entries(values).map(([name, value]) => [`@${name}`, value]));
  const filled = JSON.parse(JSON.stringify(spec), (_, value) => (placeholders.has(value) ? placeholders.get(value) : value));
  const actions = { export: true, source: false, compiled: false, editor: false };
  const previous = views.get(chart);
  const view = Promise.resolve(previous).then(async (drawn) => {
    drawn?.finalize();
    const result = await vegaEmbed(chart, { ...filled, datasets: tables }, { config: page.config, renderer: "svg", mode: "vega-lite", actions });
    const svg = chart.querySelector("svg.marks");
    svg.style.width = `${PIXELS_PER_POINT * svg.getAttribute("width")}px`;
    return result;
  });
  views.set(chart, view);
  return view;
}

function drawFigure(block) {
  const content = JSON.parse(block.querySelector("script").textContent);
  const menu = block.querySelector("select");
  const selected = content.views[menu ? menu.selectedIndex : 0], figureDataset = datasetOf(block);
  const chart = block.querySelector(".chart");
  const [low, high] = selected.limits || [];
  const values = { label: selected.label, title: `accuracy, ${selected.label}`, low, high, chosen: space ? isomorphById[cell] : null };
  const tables = selected.column === null ? {} : { points: pointsOf(figureDataset, selected.column) };
  chart.setAttribute("aria-label", [block.querySelector("h3").textContent, selected.label].filter(Boolean).join(": "));
  return draw(chart, content.figures[selected.figure], values, tables).then(({ view }) => {
    block.dataset.drawn = "true";
    if (!space) return;
    view.addEventListener("click", (_, item) => {
      if (item?.datum?.architecture !== undefined) chooseCell(Number(item.datum.architecture));
    });
  });
}

// Return the points of a scatter plot, with texts for tooltips. `column` is a column's index or a score's name.
function pointsOf(figureDataset, column) {
  const clean = fractions(figureDataset.columns.find((candidate) => candidate.key === "clean")), isEvaluation = typeof column === "number";
  const y = isEvaluation ? fractions(figureDataset.columns[column]) :
    Array.from(figureDataset.scores.find((score) => score.name === column).values, (value) => (Number.isNaN(value) ? null : value));
  const describe = (value, hasInterval) => formatPercent(value) + (figureDataset.images && hasInterval ? ` ${formatInterval(value, figureDataset)}` : "");
  return Array.from(figureDataset.ids, (id, row) => ({ architecture: id, clean: clean[row], accuracy: y[row],
    kernel_parameters: space ? figureDataset.kernelParameters[row] : null, clean_text: describe(clean[row], true), accuracy_text: describe(y[row], isEvaluation),
  })).filter((point) => point.clean !== null && point.accuracy !== null);
}

// Mark the explorer's cell in scatter plots.
function markChosen() {
  for (const drawn of views.values()) {
    drawn.then(({ view, spec }) => {
      if (spec.params?.some(({ name }) => name === "chosen")) view.signal("chosen", isomorphById[cell]).run();
    });
  }
}

// Figures are drawn one at a time when they come near the window, so that the page remains responsive.
const waitingFigures = new Set();

function drawNext() {
  const [block] = waitingFigures;
  if (block === undefined) return;
  waitingFigures.delete(block);
  drawFigure(block);
  if (waitingFigures.size) setTimeout(drawNext);
}

function requestDrawing(block) {
  if (waitingFigures.size === 0) setTimeout(drawNext);
  waitingFigures.add(block);
}

const nearWindow = new Set();  // figures in or near the window
const observer = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (!isIntersecting) nearWindow.delete(target);
    else {
      nearWindow.add(target);
      if (target.dataset.drawn !== "true") requestDrawing(target);
    }
  }
}, { rootMargin: "400px" });

// ---- cells ---------------------------------------------------------------------------------------------------------

// Return the index of the operation on each edge of a cell.
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

function drawCell(container, id) {
  if (!container.firstElementChild) {
    container.append($("cell-drawing").content.cloneNode(true));
  }
  const operations = operationsOf(id);
  for (const part of container.querySelectorAll("[data-edge]")) {
    const isCurrent = space.operations[operations[part.dataset.edge]] === part.dataset.operation;
    part.style.display = isCurrent ? "" : "none";
  }
  const descriptions = operations.map((operation, edge) => `${space.edgeLabels[edge]} ${space.labels[operation]}`);
  container.querySelector("svg").setAttribute("aria-label", `Cell ${id}: ${descriptions.join(", ")}`);
}

// ---- explorer ------------------------------------------------------------------------------------------------------

const menus = (space ? space.edges : []).map((_, edge) => $(`edge-${edge}`));
let cell = 0;  // the shown cell
let other = null;  // the second cell, or null

function parseCell(text) {
  // In an address, a plus sign that is not encoded is decoded as a space.
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
  updateAddress();
  if (scroll) $("explorer").scrollIntoView({ block: "start" });
}

function updateAddress() {
  const state = { dataset: dataset.name, ...(space && { cell: String(cell) }), ...(other !== null && { other: String(other) }) };
  history.replaceState(null, "", `#${new URLSearchParams(state)}`);
}

function element(tag, text = "", attributes = {}) {
  const node = document.createElement(tag);
  node.textContent = text;
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

function showCell() {
  drawCell($("cell"), cell);
  const isomorph = isomorphById[cell];
  const row = dataset.rowById.get(isomorph);
  $("cell-id").textContent = `#${cell}`;
  $("cell-spec").textContent = specOf(cell);
  $("cell-input").value = String(cell);
  const isomorphNote = $("cell-isomorph");
  isomorphNote.replaceChildren();
  if (isomorph === cell) isomorphNote.textContent = "It represents its isomorphism class.";
  else {
    isomorphNote.append("Isomorphic to ");
    const link = element("a", `#${isomorph}`, { href: `#cell=${isomorph}`, "data-cell": isomorph });
    isomorphNote.append(link, ", which was evaluated instead.");
  }
  showNumbers($("cell-numbers"), row);
  showOther();
  showNeighbours();
  markChosen();
}

function showNumbers(container, row, baseRow) {
  if (row === undefined) {
    container.replaceChildren(element("p", `Its class was not evaluated on ${dataset.name}.`, { class: "warning" }));
    return;
  }
  const axes = [...new Set(dataset.columns.map((column) => column.axis))].filter(Boolean);
  container.replaceChildren(scoreList(row, baseRow), ...axes.map((axis) => accuracyTable(axis, row, baseRow)));
}

// Show the second cell next to the first cell, with the differences between them.
function showOther() {
  $("other").hidden = $("other-end").hidden = other === null;
  $("explorers").classList.toggle("two", other !== null);
  if (other === null) return;
  drawCell($("other-cell"), other);
  $("other-id").textContent = `#${other}`;
  $("other-spec").textContent = specOf(other);
  const [first, second] = [operationsOf(cell), operationsOf(other)];
  const changes = first.map((operation, edge) => (operation === second[edge] ? "" :
    `${space.edgeLabels[edge]} ${space.labels[second[edge]]} instead of ${space.labels[operation]}`)).filter(Boolean);
  const isomorph = isomorphById[other];
  $("other-difference").textContent = `Differs on ${changes.length} of ${first.length} edges from #${cell}${
    changes.length ? `: ${changes.join(", ")}` : ""}.${isomorph === other ? "" : ` Isomorphic to #${isomorph}, which was evaluated.`}`;
  showNumbers($("other-numbers"), dataset.rowById.get(isomorph), dataset.rowById.get(isomorphById[cell]));
}

function scoreList(row, baseRow) {
  const list = element("dl", "", { class: "scores" });
  const kernel = element("div");
  kernel.append(element("dt", "kernel parameters"), element("dd", String(dataset.kernelParameters[row])));
  for (const score of dataset.scores) {
    const item = element("div"), value = score.values[row];
    const standing = rank(score.values, row);
    item.append(element("dt", `${score.label} accuracy`), element("dd", Number.isNaN(value) ? "–" : formatPercent(value)));
    const shared = standing.nTied > 1 ? `, shared by ${formatCount(standing.nTied)}` : "";
    if (!Number.isNaN(value)) item.append(element("dd", `rank ${formatCount(standing.rank)} of ${formatCount(standing.nRanked)}${shared}`));
    if (score.name === "clean" && dataset.images && !Number.isNaN(value)) {
      item.append(element("dd", `95%: ${formatInterval(value, dataset)}`));
    }
    const change = baseRow === undefined ? NaN : 100 * (value - score.values[baseRow]);
    if (!Number.isNaN(change)) item.append(element("dd", `${formatChange(change)} points`));
    list.append(item);
  }
  list.append(kernel);
  return list;
}

function accuracyTable(axis, row, baseRow) {
  const columns = dataset.columns.filter((column) => column.axis === axis);
  const strengths = [...new Set(columns.map((column) => column.strength))].sort((a, b) => a - b);
  const keys = [...new Set(columns.map((column) => column.key))];
  const tableElement = element("table", "", { class: "numbers" }), body = element("tbody"), head = element("tr");
  tableElement.append(element("caption", `Accuracy in %, ${
    dataset.images ? `its 95% interval (${formatCount(dataset.images)} images), ` : ""}the rank (= marks ties)${
    baseRow === undefined ? "" : ", the difference in points"}, by ${axis}`));
  head.append(element("th", ""), ...strengths.map((strength) => element("th", String(strength), { scope: "col" })));
  for (const key of keys) {
    const line = element("tr");
    line.append(element("th", columns.find((candidate) => candidate.key === key).name, { scope: "row" }));
    for (const strength of strengths) {
      const column = columns.find((candidate) => candidate.key === key && candidate.strength === strength);
      const field = element("td");
      if (column && column.values[row] !== page.missing) {
        field.append((100 * column.values[row] / page.resolution).toFixed(2));
        const standing = rank(column.values, row, page.missing);
        const value = column.values[row] / page.resolution;
        if (dataset.images) field.append(element("small", formatInterval(value, dataset), { class: "interval" }));
        field.append(element("small", `${standing.nTied > 1 ? "=" : ""}${formatCount(standing.rank)}`, { class: "rank" }));
        if (baseRow !== undefined && column.values[baseRow] !== page.missing) {
          field.append(element("small", formatChange(100 * (value - column.values[baseRow] / page.resolution))));
        }
      }
      line.append(field);
    }
    body.append(line);
  }
  const header = element("thead");
  header.append(head);
  tableElement.append(header, body);
  const frame = element("div", "", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Accuracy by ${axis}` });
  frame.append(tableElement);
  return frame;
}

function showNeighbours() {
  const score = dataset.scores[$("neighbour-score").selectedIndex];
  const operations = operationsOf(cell), row = dataset.rowById.get(isomorphById[cell]);
  const changes = [];
  let largest = 1;
  operations.forEach((current, edge) => {
    for (let operation = 0; operation < nOperations; operation += 1) {
      const id = isomorphById[idOf(operations.map((operationOnEdge, index) => (index === edge ? operation : operationOnEdge)))];
      const neighbourRow = dataset.rowById.get(id);
      const isKnown = row !== undefined && neighbourRow !== undefined && score !== undefined;
      const change = operation === current ? 0 : isKnown ? 100 * (score.values[neighbourRow] - score.values[row]) : NaN;
      if (Number.isNaN(change)) continue;
      largest = Math.max(largest, Math.abs(change));
      const [text, hover] = operation === current ? ["•", "the cell's own operation"] : [formatChange(change), formatChange(change)];
      changes.push({ r: edge, c: operation, value: change, text, hover });
    }
  });
  draw($("neighbour-chart"), page.neighbours, { low: -largest, high: largest }, { changes });
}

// ---- table of architectures ----------------------------------------------------------------------------------------

const ROWS_PER_PAGE = 50;
const tableState = { sortColumn: null, isDescending: true, page: 0, rows: [] };

// Return the ranks of all rows by a score; they are computed once and then stored in the score.
function allRanks(score) {
  if (score.ranks) return score.ranks;
  const order = Array.from(score.values.keys()).filter((row) => !Number.isNaN(score.values[row]));
  order.sort((a, b) => score.values[b] - score.values[a]);
  score.ranks = new Array(score.values.length).fill(null);
  order.forEach((row, index) => {
    const above = order[index - 1];
    const isTied = index > 0 && score.values[above] === score.values[row];
    score.ranks[row] = isTied ? score.ranks[above] : index + 1;
  });
  return score.ranks;
}

// Return the columns of the table and of its CSV file. `value` returns the value of a row, or null if it is missing, and
// `text` formats a value for the table. The first click on a column of numbers sorts them in descending order, unless
// `isAscendingFirst` is true.
function tableColumns() {
  const rounded = (value) => (Number.isNaN(value) ? null : Number(value.toPrecision(7)));
  const asText = (value) => String(value);
  return [
    { name: "architecture", value: (row) => dataset.ids[row], text: (id) => (space ? `#${id}` : id) },
    ...dataset.scores.flatMap((score) => [
      { name: score.label, value: (row) => rounded(score.values[row]), text: formatPercent },
      { name: `rank by ${score.label}`, value: (row) => allRanks(score)[row], text: formatCount, isAscendingFirst: true },
    ]),
    ...(space ? [{ name: "kernel parameters", value: (row) => dataset.kernelParameters[row], text: asText }] : []),
    ...(dataset.front ? [{ name: "Pareto front", value: (row) => dataset.front[row], text: (isOnFront) => (isOnFront ? "yes" : "") }] : []),
    ...(space ? [{ name: "cell", value: (row) => specOf(dataset.ids[row]), text: asText }] : []),
  ];
}

function listRows() {
  const search = $("filter-text").value.trim().toLowerCase().replace(/^#/, "");
  const scoreMinima = [...document.querySelectorAll("#filters [data-score]")].filter((input) => input.value !== "")
    .map((input) => [dataset.scores.find((score) => score.name === input.dataset.score), Number(input.value) / 100]);
  const readNumber = (id) => (space && $(id).value !== "" ? Number($(id).value) : null);
  const min = readNumber("filter-min"), max = readNumber("filter-max"), showsFrontOnly = $("filter-front").checked;
  const rows = Array.from(dataset.ids.keys()).filter((row) => {
    if (showsFrontOnly && !(dataset.front && dataset.front[row])) return false;
    if (min !== null && dataset.kernelParameters[row] < min) return false;
    if (max !== null && dataset.kernelParameters[row] > max) return false;
    // The tolerance accepts an accuracy that equals the minimum before rounding to 32 bits.
    if (!scoreMinima.every(([score, low]) => score && score.values[row] >= low - 1e-6)) return false;
    if (search === "") return true;
    const id = String(dataset.ids[row]).toLowerCase();
    return id.includes(search) || (space && specOf(dataset.ids[row]).includes(search));
  });
  const columns = tableColumns(), column = columns.find(({ name }) => name === tableState.sortColumn);
  if (column) {
    const values = new Map(rows.map((row) => [row, column.value(row)]));
    const sign = tableState.isDescending ? -1 : 1;
    rows.sort((a, b) => {
      const first = values.get(a), second = values.get(b);
      if (first === null || second === null) return (first === null) - (second === null) || a - b;
      return first === second ? a - b : sign * (first < second ? -1 : 1);
    });
  }
  tableState.rows = rows;
  tableState.page = 0;
  showTable();
}

function showTable() {
  const columns = tableColumns(), { rows } = tableState, tableElement = $("architecture-table");
  const nPages = Math.max(1, Math.ceil(rows.length / ROWS_PER_PAGE)), first = tableState.page * ROWS_PER_PAGE;
  const head = element("tr");
  for (const column of columns) {
    const isSorted = column.name === tableState.sortColumn;
    const headerCell = element("th", "", { scope: "col", "aria-sort": isSorted ? (tableState.isDescending ? "descending" : "ascending") : "none" });
    const button = element("button", `${column.name}${isSorted ? (tableState.isDescending ? " ▼" : " ▲") : ""}`, { type: "button" });
    button.addEventListener("click", () => {
      tableState.isDescending = isSorted ? !tableState.isDescending : !column.isAscendingFirst && typeof column.value(0) === "number" && column.name !== "architecture";
      tableState.sortColumn = column.name;
      listRows();
      tableElement.querySelectorAll("thead button")[columns.indexOf(column)].focus();
    });
    headerCell.append(button);
    head.append(headerCell);
  }
  const lines = rows.slice(first, first + ROWS_PER_PAGE).map((row) => {
    const line = element("tr");
    for (const column of columns) {
      const value = column.value(row), text = value === null ? "–" : column.text(value);
      const field = element(column.name === "architecture" ? "th" : "td", "", column.name === "cell" ? { class: "spec" } : {});
      if (column.name === "architecture" && space) field.append(element("a", text, { href: `#cell=${value}`, "data-cell": value }));
      else field.textContent = text;
      line.append(field);
    }
    return line;
  });
  tableElement.tHead.replaceChildren(head);
  tableElement.tBodies[0].replaceChildren(...lines);
  const last = Math.min(rows.length, first + ROWS_PER_PAGE);
  $("page-range").textContent = rows.length === 0 ? "No architecture matches." :
    `${formatCount(first + 1)} to ${formatCount(last)} of ${formatCount(rows.length)}${rows.length < dataset.ids.length ? `, selected from ${formatCount(dataset.ids.length)}` : ""}`;
  $("page-previous").disabled = tableState.page === 0;
  $("page-next").disabled = tableState.page + 1 >= nPages;
}

// Put an apostrophe before text that a spreadsheet would evaluate as a formula, as core/csv_files.py does.
function withoutFormulas(value) {
  return Number.isNaN(Number(value)) ? String(value).replace(/(^|[;\t\r\n])(?=\s*[=+\-@＝＋－＠][^])/g, "$1'") : String(value);
}

function csvText() {
  const columns = tableColumns();
  const quoted = (text) => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const field = (value) => (value === null ? "" : quoted(withoutFormulas(value)));
  const lines = tableState.rows.map((row) => columns.map((column) => field(column.value(row))).join(","));
  return `${[columns.map((column) => field(column.name.replaceAll(" ", "_"))).join(","), ...lines].join("\n")}\n`;
}

function downloadTable() {
  const address = URL.createObjectURL(new Blob([csvText()], { type: "text/csv" }));
  element("a", "", { href: address, download: `${dataset.name}-architectures.csv` }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

function startTable() {
  $("filters").addEventListener("input", listRows);
  $("filters").addEventListener("submit", (event) => event.preventDefault());
  // The browser clears the fields only after the event.
  $("filters").addEventListener("reset", () => setTimeout(listRows));
  $("download").addEventListener("click", downloadTable);
  $("page-previous").addEventListener("click", () => { tableState.page -= 1; showTable(); });
  $("page-next").addEventListener("click", () => { tableState.page += 1; showTable(); });
}

// Keep the sort column if the dataset has it; otherwise sort by mean adversarial accuracy or, without it, by the first score.
function sortTable() {
  const names = dataset.scores.map((score) => score.name);
  const score = dataset.scores[Math.max(0, names.indexOf("adversarial"))];
  if (!tableColumns().some(({ name }) => name === tableState.sortColumn)) tableState.sortColumn = score ? score.label : "architecture";
  listRows();
}

// ---- navigation ----------------------------------------------------------------------------------------------------

function chooseDataset(name) {
  dataset = datasets.find((candidate) => candidate.name === name) || datasets[0];
  $("dataset").value = dataset.name;
  for (const section of document.querySelectorAll("section[data-dataset]")) {
    section.hidden = section.dataset.dataset !== dataset.name;
  }
  // The observer does not report figures that were hidden and shown again within one frame.
  waitingFigures.clear();
  for (const block of nearWindow) if (block.dataset.drawn !== "true" && !block.closest("section").hidden) requestDrawing(block);
  sortTable();
  if (!space) return;
  const menu = $("neighbour-score"), previous = menu.value;
  menu.replaceChildren(...dataset.scores.map((score) => element("option", score.label)));
  if (dataset.scores.some((score) => score.label === previous)) menu.value = previous;
  showCell();
}

function followAddress({ scroll = true } = {}) {
  const parameters = new URLSearchParams(location.hash.slice(1));
  if (location.hash === "#terms") $("terms").open = true;
  if (parameters.has("dataset")) chooseDataset(parameters.get("dataset"));
  const id = space && parameters.has("cell") ? parseCell(parameters.get("cell")) : null;
  if (space && parameters.has("other")) other = parseCell(parameters.get("other"));
  if (id !== null) chooseCell(id, { scroll });
}

function compareWith(id) {
  other = id;
  showOther();
  updateAddress();
}

function startExplorer() {
  $("neighbour-score").addEventListener("change", showNeighbours);
  for (const menu of menus) {
    menu.addEventListener("change", () => chooseCell(idOf(menus.map(({ selectedIndex }) => selectedIndex)), { scroll: false }));
  }
  $("cell-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const id = parseCell($("cell-input").value);
    const last = idByCode.length - 1;
    $("cell-error").textContent = id === null ? `Enter an index from 0 to ${last} or a cell string.` : "";
    if (id !== null) chooseCell(id, { scroll: false });
  });
  $("other-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const id = parseCell($("other-input").value);
    $("other-error").textContent = id === null ? `Enter an index from 0 to ${idByCode.length - 1} or a cell string.` : "";
    if (id !== null) compareWith(id);
  });
  $("other-end").addEventListener("click", () => compareWith(null));
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-cell]");
    if (!link) return;
    event.preventDefault();
    chooseCell(Number(link.dataset.cell));
  });
  for (const container of document.querySelectorAll(".card [data-draw]")) drawCell(container, Number(container.dataset.draw));
}

function showBestCell() {
  cell = dataset.best;
  operationsOf(cell).forEach((operation, edge) => { menus[edge].selectedIndex = operation; });
  showCell();
}

function start() {
  if (space) startExplorer();
  startTable();
  $("dataset").addEventListener("change", (event) => { chooseDataset(event.target.value); updateAddress(); });
  $("theme").addEventListener("change", (event) => {
    try { localStorage.setItem("robust201-theme", event.target.value); } catch { /* without storage, the theme is not remembered */ }
    setTheme(event.target.value);
  });
  systemDark.addEventListener("change", () => setTheme($("theme").value));
  for (const block of document.querySelectorAll("figure[data-figure]")) {
    const menu = block.querySelector("select");
    if (menu) menu.addEventListener("change", () => drawFigure(block));
    observer.observe(block);
  }
  addEventListener("hashchange", () => followAddress());
  addEventListener("beforeprint", prepareForPrint);
  addEventListener("afterprint", () => setTheme($("theme").value));
  chooseDataset(datasets[0].name);
  if (space) showBestCell();
  setTheme(storedTheme());
  followAddress();
}

start();
