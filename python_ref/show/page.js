// The page: controls, the text in two panes, the tables of methods and the token's details.

const data = load(document.getElementById("data"));
const at = (id) => document.getElementById(id);
const percent = (share) => `${(100 * share).toFixed(1)}%`;
const PART = "·"; // stands for a token that is a part of a character
const several = () => view.rows.length > 1;

// Indices of methods; the ideal is 0. `layer` and `head` are null for all of them.
const view = {
  layer: Math.floor(data.start / data.heads),
  head: data.start % data.heads,
  budget: Math.max(1, Math.round(data.n / 4)),
  left: Math.min(1, data.methods.length - 1),
  right: 0,
  token: 0,
  rows: [],
  summaries: [],
  markBudget: null,
};

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// What cannot be seen or would change the direction of its neighbours, made visible.
function visible(text) {
  return text.replace(/[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu, (c) => {
    const code = c.codePointAt(0);
    if (c === "\n") return "↵";
    if (c === "\t") return "⇥";
    if (code < 32) return String.fromCodePoint(0x2400 + code);
    if (code === 127) return "␡";
    return `‹U+${code.toString(16).toUpperCase().padStart(4, "0")}›`;
  });
}

function buildText(side) {
  const tokens = data.tokens.map((text, i) => {
    const token = element("span", { class: "token", tabindex: -1, "data-token": i });
    // A line break stays a line break, behind its sign.
    token.textContent = text.split("\n").map(visible).join("↵\n") || PART;
    if (i < data.sinks || i >= data.n - data.recent) token.classList.add("pinned");
    return token;
  });
  for (const [start, stop] of data.marked) {
    for (const token of tokens.slice(start, stop)) token.classList.add("marked");
    tokens[start].classList.add("first");
    tokens[stop - 1].classList.add("last");
  }
  const text = at(side).querySelector(".text");
  text.append(...tokens);
  text.addEventListener("pointerover", (event) => lookAt(tokenOf(event.target)));
  text.addEventListener("focusin", (event) => lookAt(tokenOf(event.target)));
  text.addEventListener("keydown", (event) => walk(event, tokens));
  return tokens;
}

function tokenOf(target) {
  return "token" in target.dataset ? Number(target.dataset.token) : view.token;
}

// Arrow keys and Home and End move the focus through the text.
function walk(event, tokens) {
  const from = tokenOf(event.target);
  const to = {
    ArrowLeft: from - 1,
    ArrowRight: from + 1,
    ArrowUp: lineAway(tokens, from, -1),
    ArrowDown: lineAway(tokens, from, 1),
    Home: 0,
    End: data.n - 1,
  }[event.key];
  if (to === undefined || event.ctrlKey || event.altKey || event.metaKey) return;
  event.preventDefault();
  tokens[Math.min(Math.max(to, 0), data.n - 1)].focus();
}

// The token nearest to `from` on the line above (-1) or below (1).
function lineAway(tokens, from, direction) {
  const box = (i) => tokens[i].getClientRects()[0];
  const [x, start] = [box(from).left, box(from).top];
  let [best, line] = [from, null];
  for (let i = from + direction; i >= 0 && i < data.n; i += direction) {
    const { left, top } = box(i);
    if (Math.abs(top - start) < 4) continue;
    line ??= top;
    if (Math.abs(top - line) > 4) break;
    if (best === from || Math.abs(left - x) < Math.abs(box(best).left - x)) best = i;
  }
  return best;
}

function buildControls() {
  const option = (value, text) => element("option", { value }, text);
  for (const [name, count] of [["layer", data.layers], ["head", data.heads]]) {
    at(name).append(option("all", "all (mean)"));
    for (let i = 0; i < count; i++) at(name).append(option(i, i));
    at(name).value = view[name];
    at(name).addEventListener("change", () => {
      view[name] = at(name).value === "all" ? null : Number(at(name).value);
      showRows();
    });
  }
  for (const side of ["left", "right"]) {
    const select = at(`${side}-method`);
    select.append(...data.methods.map((method, index) => option(index, method.name)));
    select.value = view[side];
    select.addEventListener("change", () => {
      view[side] = Number(select.value);
      paint(side);
      showBudget();
    });
  }
  at("budget").max = data.n;
  at("budget").value = view.budget;
  at("budget").addEventListener("input", () => {
    view.budget = Number(at("budget").value);
    showBudget();
  });
  at("controls").addEventListener("submit", (event) => event.preventDefault());
}

// A row for each method in both tables; the numbers come later.
function buildMethods() {
  data.methods.forEach((method, index) => {
    const sample = svg("svg", { class: "sample", viewBox: "0 0 28 10", "aria-hidden": "true" });
    sample.append(svg("line", { class: lineStyle(index), x1: 0, x2: 28, y1: 5, y2: 5 }));
    const row = (...name) => {
      const cells = [1, 2, 3].map(() => element("td"));
      return element("tr", {}, element("th", { scope: "row" }, ...name), ...cells);
    };
    at("methods").append(row(sample, method.name));
    at("token-rows").append(row(method.name));
  });
}

function buildBranches() {
  for (const [question, answer] of data.branches) {
    const item = element("li");
    if (question) item.append(element("span", { class: "question" }, shown(question)), " ");
    item.append(element("span", { class: "answer" }, shown(answer)));
    at("branches").querySelector("ol").append(item);
  }
  at("branches").hidden = data.branches.length === 0;
}

// A text of several lines, without what surrounds it.
function shown(text) {
  return text.trim().split("\n").map(visible).join("\n");
}

// Another layer or head.
function showRows() {
  view.rows = rowsOf(data, view.layer, view.head);
  view.summaries = data.methods.map((method) => summarise(data, method, view.rows));
  const curves = view.summaries.map((summary) => summary.lost);
  const pinned = Math.min(data.sinks + data.recent, data.n);
  view.markBudget = drawChart(at("chart"), curves, Math.max(pinned, 1), data.n);
  for (const side of ["left", "right"]) paint(side);
  showBudget();
}

// The colours of a pane: they depend on the method, not on the budget.
function paint(side) {
  const { rank } = view.summaries[view[side]];
  at(`${side}-name`).textContent = data.methods[view[side]].name;
  texts[side].forEach((token, i) => {
    token.style.setProperty("--rank", (rank[i] / Math.max(data.n - 1, 1)).toFixed(3));
  });
}

// Another budget or method.
function showBudget() {
  const { budget } = view;
  const text = `${budget} of ${data.n} kept (${percent(budget / data.n)})`;
  at("kept").textContent = text;
  at("budget").setAttribute("aria-valuetext", text);
  view.markBudget(budget);
  for (const side of ["left", "right"]) {
    const method = data.methods[view[side]];
    texts[side].forEach((token, i) => {
      const kept = countKept(data, method, view.rows, budget, i);
      token.classList.toggle("evicted", 2 * kept < view.rows.length);
    });
  }
  view.summaries.forEach((summary, index) => {
    const row = at("methods").rows[index];
    row.cells[1].textContent = percent(summary.lost[budget]);
    row.cells[2].textContent = data.markedCount ? percent(summary.markedKept[budget]) : "–";
    row.cells[3].textContent = summary.costRatio.toFixed(2);
    row.classList.toggle("on-left", index === view.left);
    row.classList.toggle("on-right", index === view.right);
    at("token-rows").rows[index].className = row.className;
  });
  lookAt(view.token);
}

// Another token: its details, and its place in both panes.
function lookAt(i) {
  for (const tokens of Object.values(texts)) {
    tokens[view.token].classList.remove("active");
    tokens[view.token].tabIndex = -1;
    tokens[i].classList.add("active");
    tokens[i].tabIndex = 0;
  }
  view.token = i;
  const mean = several() ? "mean " : "";
  const utility = view.summaries[0].score[i].toPrecision(3);
  const notes = [`position ${i}`, `${mean}utility ${utility}`];
  if (data.isMarked[i]) notes.push("asked for");
  if (texts.left[i].classList.contains("pinned")) notes.push("always kept");
  if (data.tokens[i] === "") notes.push("part of a character");
  const quoted = element("code", {}, visible(data.tokens[i]) || PART);
  at("token-text").replaceChildren(quoted, ` ${notes.join(", ")}`);
  data.methods.forEach((method, index) => {
    const { rank, score } = view.summaries[index];
    const kept = countKept(data, method, view.rows, view.budget, i);
    const cells = at("token-rows").rows[index].cells;
    cells[1].textContent = several() ? `${(rank[i] + 1).toFixed(1)}` : rank[i] + 1;
    cells[2].textContent = Number.isNaN(score[i]) ? "none" : score[i].toPrecision(3);
    cells[3].textContent = several() ? `${kept} of ${view.rows.length}` : kept ? "yes" : "no";
  });
}

document.title = data.title;
at("title").textContent = data.title;
at("about").textContent =
  (data.model ? `${data.model}. ` : "") +
  `${data.n} tokens, ${data.layers} layers with ${data.heads} KV heads each; ` +
  `the first ${data.sinks} and the last ${data.recent} tokens are always kept.`;
const texts = { left: buildText("left"), right: buildText("right") };
buildControls();
buildMethods();
buildBranches();
showRows();
