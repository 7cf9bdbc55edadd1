// The table of runs: kept up to date by events, sorted and filtered here.
const byId = (id) => document.getElementById(id);
const make = (kind, properties = {}, ...content) => {
  const made = Object.assign(document.createElement(kind), properties);
  made.append(...content);
  return made;
};
const numberOrDash = (value) => (value === null ? "\u2013" : number(value));

// What the reader has chosen, stored in the address.
const first = { sort: "status", filter: "", theme: "auto" };
const state = { ...first };
const readState = () => {
  const given = new URLSearchParams(location.hash.slice(1));
  for (const [key, value] of Object.entries(first)) state[key] = given.get(key) ?? value;
  if (!SORTS[state.sort.replace(/^-/, "")]) state.sort = first.sort;
};
const saveState = () => {
  const chosen = Object.entries(state).filter(([key, value]) => value !== first[key]);
  history.replaceState(null, "", `#${new URLSearchParams(chosen)}`);
};

const STATUSES = { failed: "\u2715", watch: "!", healthy: "\u2713", unknown: "?" };
const rank = ({ status }) => Object.keys(STATUSES).indexOf(status);
const share = ({ step, total }) => (step === null ? -1 : total ? Math.min(1, step / total) : 0);
// Columns that sort: heading, value, and whether large values come first.
const SORTS = {
  status: ["Status", rank],
  label: ["Run", ({ label }) => label.toLowerCase()],
  step: ["Step", (run) => run.step ?? -1, true],
  measured_at: ["Measured", (run) => run.measured_at ?? 0, true],
  loss: ["Loss", (run) => run.loss ?? Infinity],
  two_nn: ["TwoNN", (run) => run.two_nn ?? Infinity],
  anisotropy: ["Anisotropy", (run) => run.anisotropy ?? -1, true],
};
const compareBy = (key) => {
  const name = key.replace(/^-/, "");
  const [, value, largeFirst] = SORTS[name];
  const sign = (key === name ? 1 : -1) * (largeFirst ? -1 : 1);
  const order = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
  return (a, b) => sign * order(value(a), value(b)) || order(b.measured_at ?? 0, a.measured_at ?? 0) || order(a.label, b.label);
};

const runs = new Map();
const rows = new Map();
// seconds by which this computer's clock is behind the server's
let behind = 0;
const age = (run) => {
  if (run.measured_at === null) return "\u2013";
  const seconds = Math.max(0, Date.now() / 1000 + behind - run.measured_at);
  const [size, unit] = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]].find(([size]) => seconds >= size) ?? [1, "s"];
  return `${formatted(Math.floor(seconds / size))} ${unit} ago`;
};
const numberCell = (name, ...content) => {
  const cell = make("td", { className: "number" }, ...content);
  cell.dataset.name = SORTS[name][0];
  return cell;
};
const stepCell = (run) => {
  if (run.step === null || run.finished) return numberCell("step", run.finished ? "finished model" : "\u2013");
  const text = run.total ? `${formatted(run.step)} of ${formatted(run.total)}` : formatted(run.step);
  const bar = run.total ? [make("progress", { max: 1, value: share(run), ariaLabel: `${Math.round(100 * share(run))}%` })] : [];
  return numberCell("step", text, ...bar);
};
const nameCell = (run) => {
  const theme = state.theme === "auto" ? "" : `#theme=${state.theme}`;
  const link = make("a", { href: `run/${run.key}${theme}` }, run.label);
  const origin = make("span", { className: "origin" }, [run.model, run.store].filter(Boolean).join(", "));
  return make("th", { scope: "row" }, link, " ", origin, make("span", { className: "reason" }, run.reason));
};
const lossCell = (run) => {
  const curve = run.losses.length > 1 ? [sparkline(run.losses.map(([step]) => step), run.losses.map(([, loss]) => loss))] : [];
  return numberCell("loss", numberOrDash(run.loss), ...curve);
};
// of all vectors, and below it of those without sinks, and of one vector of each distinct token or input
const meanCell = (metric, run) => {
  const beside = run.beside[metric].map(([value, vectors]) => make("span", { className: "reason" }, `${number(value)} ${vectors}`));
  return numberCell(metric, numberOrDash(run[metric]), ...beside);
};
const fillRow = (row, run) => {
  const checked = row.querySelector("input")?.checked ?? false;
  const focused = row.contains(document.activeElement) ? document.activeElement.tagName : null;
  const box = make("input", { type: "checkbox", name: "run", value: run.key, checked, ariaLabel: `compare ${run.label}` });
  const status = make("span", { className: `status ${run.status}` }, make("span", { ariaHidden: "true" }, STATUSES[run.status]), ` ${run.status}`);
  row.replaceChildren(make("td", {}, box), make("td", { className: "status-cell" }, status), nameCell(run), stepCell(run),
    numberCell("measured_at", age(run)), lossCell(run), meanCell("two_nn", run), meanCell("anisotropy", run));
  if (focused) row.querySelector(focused.toLowerCase())?.focus({ preventScroll: true });
};
const matches = (run) => {
  const text = `${run.label} ${run.model} ${run.store} ${run.status} ${run.reason}`.toLowerCase();
  return state.filter.toLowerCase().split(/\s+/).every((word) => text.includes(word));
};
const showCompare = () => {
  const checked = document.querySelectorAll("#rows tr:not([hidden]) input:checked").length;
  byId("compare").disabled = checked < 2;
  byId("compare").textContent = checked < 2 ? "Compare" : `Compare ${checked} runs`;
};
const arrange = () => {
  const ordered = [...runs.values()].sort(compareBy(state.sort));
  const focused = document.activeElement;
  let place = byId("rows").firstElementChild;
  for (const run of ordered) {
    const row = rows.get(run.key);
    row.hidden = !matches(run);
    // what a hidden row says is not compared
    row.querySelector("input").disabled = row.hidden;
    if (row === place) place = place.nextElementSibling;
    else byId("rows").insertBefore(row, place);
  }
  if (focused !== document.activeElement) focused.focus({ preventScroll: true });
  for (const heading of byId("headings").querySelectorAll("[data-sort]")) {
    const [, , largeFirst] = SORTS[heading.dataset.sort];
    const descending = state.sort.startsWith("-") !== Boolean(largeFirst);
    if (state.sort.replace(/^-/, "") === heading.dataset.sort) heading.ariaSort = descending ? "descending" : "ascending";
    else heading.removeAttribute("aria-sort");
  }
  byId("sort").value = state.sort.replace(/^-/, "");
  byId("empty").hidden = runs.size > 0;
  byId("table").hidden = runs.size === 0;
  showCounts();
  showCompare();
};
const showCounts = () => {
  const all = [...runs.values()];
  const count = (status) => all.filter((run) => run.status === status).length;
  const known = Object.keys(STATUSES).filter(count).map((status) => `${count(status)} ${status}`);
  const shown = all.filter(matches).length;
  const text = [shown < all.length ? `${shown} of ${all.length} runs shown` : `${all.length} ${all.length === 1 ? "run" : "runs"}`, ...known].join(", ");
  // a status that stays is not announced again
  if (byId("counts").textContent !== text) byId("counts").textContent = text;
  document.title = count("failed") ? `Runs (${count("failed")} failed)` : "Runs";
};
const take = ({ now, runs: changed, gone, whole, problem }) => {
  behind = now - Date.now() / 1000;
  // the first event after a pause does not say what has gone
  const there = new Set(changed.map(({ key }) => key));
  for (const key of whole ? [...runs.keys()].filter((key) => !there.has(key)) : gone) {
    runs.delete(key);
    rows.get(key)?.remove();
    rows.delete(key);
  }
  for (const run of changed) {
    const known = runs.get(run.key);
    runs.set(run.key, run);
    if (!known) rows.set(run.key, make("tr", { id: `run-${run.key}` }));
    const row = rows.get(run.key);
    fillRow(row, run);
    if (known && known.step !== run.step) {
      row.classList.remove("changed");
      // the animation starts anew
      void row.offsetWidth;
      row.classList.add("changed");
    }
  }
  byId("problem").hidden = !problem;
  byId("problem").textContent = problem && `The stores could not be looked at: ${problem}`;
  arrange();
  document.documentElement.dataset.ready = "yes";
};

const dark = matchMedia("(prefers-color-scheme: dark)");
const showTheme = () => {
  const isDark = state.theme === "dark" || (state.theme === "auto" && dark.matches);
  document.documentElement.dataset.theme = isDark ? "dark" : "light";
  byId("theme").value = state.theme;
  for (const [key, row] of rows) fillRow(row, runs.get(key));
};
const sortBy = (name) => {
  state.sort = state.sort === name ? `-${name}` : name;
  saveState();
  arrange();
};
const begin = () => {
  readState();
  byId("filter").value = state.filter;
  showTheme();
  arrange();
};
const connect = () => {
  byId("headings").append(make("th", { scope: "col" }, make("span", { className: "visually-hidden" }, "Compare")));
  for (const [name, [title]] of Object.entries(SORTS)) {
    const button = make("button", { type: "button", onclick: () => sortBy(name) }, title);
    const heading = make("th", { scope: "col", className: ["status", "label"].includes(name) ? "" : "number" }, button);
    heading.dataset.sort = name;
    byId("headings").append(heading);
    byId("sort").append(make("option", { value: name }, title));
  }
  byId("sort").onchange = (event) => { state.sort = event.target.value; saveState(); arrange(); };
  byId("filter").oninput = (event) => { state.filter = event.target.value; saveState(); arrange(); };
  byId("filter").onkeydown = (event) => { if (event.key === "Enter") event.preventDefault(); };
  byId("theme").onchange = (event) => { state.theme = event.target.value; saveState(); showTheme(); };
  byId("rows").onchange = showCompare;
  dark.onchange = showTheme;
  onhashchange = begin;
  setInterval(() => {
    for (const [key, row] of rows) row.querySelector("[data-name=Measured]").textContent = age(runs.get(key));
  }, 1000);
  stream("events", take, (text) => (byId("connection").textContent = text));
};
connect();
readState();
byId("filter").value = state.filter;
showTheme();
