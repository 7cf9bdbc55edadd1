// A curve without axes.
const WIDTH = 150, HEIGHT = 44, EDGE = 3;
const svg = (name, attributes) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
};
const scaled = (values, size) => {
  const known = values.filter((value) => !Number.isNaN(value));
  const [low, high] = [Math.min(...known), Math.max(...known)];
  return values.map((value) => EDGE + (high > low ? (value - low) / (high - low) : 0.5) * (size - 2 * EDGE));
};
const sparkline = (x, y) => {
  const [across, up] = [scaled(x, WIDTH), scaled(y, HEIGHT)];
  const points = across.map((place, index) => [place, HEIGHT - up[index]]).filter((point) => !point.some(Number.isNaN));
  const chart = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, "aria-hidden": "true", class: "sparkline" });
  chart.append(svg("polyline", { points: points.map((point) => point.join(",")).join(" ") }));
  return chart;
};
