// The embedded numbers, and what is computed from them.
// A row is one (layer, KV head); rows are numbered layer * heads + head.

function decode(base64) {
  return Uint8Array.from(atob(base64), (c) => c.charCodeAt(0)).buffer;
}

// bfloat16 is the upper half of a float32.
function fromBfloat16(buffer) {
  return new Float32Array(Uint32Array.from(new Uint16Array(buffer), (x) => x << 16).buffer);
}

function load(element) {
  const data = JSON.parse(element.textContent);
  data.n = data.tokens.length;
  data.utility = new Float32Array(decode(data.utility));
  for (const method of data.methods) {
    method.ranks = new Uint16Array(decode(method.ranks));
    method.scores = method.scores ? fromBfloat16(decode(method.scores)) : data.utility;
  }
  data.isMarked = new Array(data.n).fill(false);
  for (const [start, stop] of data.marked) data.isMarked.fill(true, start, stop);
  data.markedCount = data.isMarked.filter(Boolean).length;
  return data;
}

function rowsOf(data, layer, head) {
  const rows = [];
  for (let row = 0; row < data.layers * data.heads; row++) {
    const here = [Math.floor(row / data.heads), row % data.heads];
    if ((layer === null || layer === here[0]) && (head === null || head === here[1])) rows.push(row);
  }
  return rows;
}

// Means over rows: rank and score of each token; and for budgets 0 .. n the share of the future
// attention that is lost and the share of the marked tokens that is kept.
function summarise(data, method, rows) {
  const n = data.n;
  const [rank, score] = [new Float64Array(n), new Float64Array(n)];
  const [lost, markedKept] = [new Float64Array(n + 1), new Float64Array(n + 1)];
  let costRatio = 0;
  for (const row of rows) {
    const at = row * n;
    const utility = new Float64Array(n); // by rank
    const marked = new Uint8Array(n);
    let [cost, ideal, total] = [0, 0, 0];
    for (let i = 0; i < n; i++) {
      const r = method.ranks[at + i];
      const a = data.utility[at + i];
      rank[i] += r / rows.length;
      score[i] += method.scores[at + i] / rows.length;
      utility[r] = a;
      marked[r] = data.isMarked[i];
      cost += (r + 1) * a;
      ideal += (data.methods[0].ranks[at + i] + 1) * a;
      total += a;
    }
    costRatio += (ideal > 0 ? cost / ideal : 1) / rows.length;
    let [left, kept] = [0, 0];
    for (let b = n - 1; b >= 0; b--) {
      left += utility[b];
      lost[b] += total > 0 ? left / total / rows.length : 0;
    }
    for (let b = 0; b < n; b++) {
      kept += marked[b];
      markedKept[b + 1] += kept / data.markedCount / rows.length;
    }
  }
  return { rank, score, lost, markedKept, costRatio };
}

// In how many of the rows a token is kept at a budget.
function countKept(data, method, rows, budget, token) {
  let kept = 0;
  for (const row of rows) kept += method.ranks[row * data.n + token] < budget;
  return kept;
}
