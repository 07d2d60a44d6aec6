// Curves of lost future attention against the budget.

const SVG = "http://www.w3.org/2000/svg";
const FRAME = { left: 46, right: 358, top: 12, bottom: 190 };

function svg(name, attributes, text = "") {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.textContent = text;
  return element;
}

// A line of its own for each method: seven colours and five dash patterns in turn.
function lineStyle(index) {
  return index === 0 ? "line ideal" : `line colour-${(index - 1) % 7} dash-${(index - 1) % 5}`;
}

// Draws `curves`, lost [n + 1] for each method, and returns a function that marks a budget. The
// axis starts where methods may differ: after the tokens that are always kept.
function drawChart(chart, curves, first, n) {
  const highest = Math.max(...curves.map((lost) => lost[first])) || 1;
  const x = (b) => FRAME.left + ((b - first) / Math.max(n - first, 1)) * (FRAME.right - FRAME.left);
  const y = (lost) => FRAME.bottom - (lost / highest) * (FRAME.bottom - FRAME.top);
  const parts = [];
  for (const share of [0, 0.25, 0.5, 0.75, 1]) {
    const b = Math.round(first + share * (n - first));
    parts.push(svg("text", { class: "tick x", x: x(b), y: FRAME.bottom + 16 }, b));
    const level = y(share * highest);
    parts.push(svg("line", { class: "grid", x1: FRAME.left, x2: FRAME.right, y1: level, y2: level }));
    const label = `${Number((100 * share * highest).toPrecision(2))}%`;
    parts.push(svg("text", { class: "tick y", x: FRAME.left - 6, y: level + 4 }, label));
  }
  const middle = (FRAME.left + FRAME.right) / 2;
  parts.push(svg("text", { class: "tick x", x: middle, y: FRAME.bottom + 34 }, "tokens kept"));
  const rule = svg("line", { class: "now", y1: FRAME.top, y2: FRAME.bottom });
  const dots = curves.map((_, index) => svg("circle", { class: `${lineStyle(index)} dot`, r: 3.5 }));
  parts.push(rule);
  // The ideal is drawn last, on top.
  for (let index = curves.length - 1; index >= 0; index--) {
    const points = [];
    for (let b = first; b <= n; b++) {
      points.push(`${x(b).toFixed(1)},${y(curves[index][b]).toFixed(1)}`);
    }
    parts.push(svg("polyline", { class: lineStyle(index), points: points.join(" ") }), dots[index]);
  }
  chart.replaceChildren(...parts);

  return (budget) => {
    const now = Math.max(budget, first);
    for (const end of ["x1", "x2"]) rule.setAttribute(end, x(now));
    dots.forEach((dot, index) => {
      dot.setAttribute("cx", x(now));
      dot.setAttribute("cy", y(curves[index][now]));
    });
  };
}
