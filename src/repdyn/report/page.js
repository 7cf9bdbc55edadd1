"use strict";
// Draws the figures that Python has laid out: it brings in the numbers, the chosen step, axis and theme, nothing else.
(async () => {
  const at = (id) => document.getElementById(id);
  const root = document.documentElement;
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const number = (value) => (Number.isNaN(value) ? "no value" : String(Number(value.toPrecision(4))));
  const counted = (value) => value.toLocaleString("en-US");

  const unzip = async (id) => {
    const packed = Uint8Array.from(atob(at(id).textContent.trim()), (letter) => letter.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).arrayBuffer();
  };
  const words = async (id) => new TextDecoder().decode(await unzip(id));
  const floats = async (id) => {
    const planes = new Uint8Array(await unzip(id));
    const whole = new Uint8Array(planes.length);
    const size = planes.length / 4;
    for (let plane = 0; plane < 4; plane++)
      for (let place = 0; place < size; place++) whole[4 * place + plane] = planes[plane * size + place];
    return new Float32Array(whole.buffer);
  };

  let tree, numbers;
  try {
    const library = document.createElement("script");
    [tree, numbers, library.textContent] = await Promise.all([words("tree").then(JSON.parse), floats("numbers"), words("plotly")]);
    document.head.append(library);
  } catch (error) {
    at("trouble").hidden = false;
    at("trouble").textContent = `The pictures cannot be drawn in this browser: ${error}`;
    throw error;
  }

  // ------------------------------------------------------------------ what is chosen, kept in the address
  const known = { axis: ["steps", "tokens"], scale: ["log", "linear"], theme: ["auto", "light", "dark"] };
  // two of one name are told apart
  const names = tree.entries.map((one, index, all) =>
    all.findIndex((other) => other.label === one.label) === index ? one.label : `${one.label} (${index + 1})`);
  const first = { run: names[tree.start[2]], metric: tree.start[0], subset: tree.start[1], step: "last", axis: "steps", scale: "log",
    alerts: "yes", theme: "auto", playing: "no", hold: "no" };
  const state = { without: [] };
  const read = () => {
    const asked = new URLSearchParams(location.hash.slice(1));
    for (const [key, value] of Object.entries(first)) {
      const given = asked.get(key) ?? value;
      state[key] = (known[key] ?? [given]).includes(given) ? given : value;
    }
    state.without = asked.getAll("without").filter((name) => names.includes(name));
    const gone = names.includes(state.run) ? "" : state.run;
    if (gone) state.run = first.run;
    at("gone").hidden = !gone;
    at("gone").textContent = gone && `The run ${gone}, which the address names, is not on this page; this is ${state.run}.`;
  };
  const keep = () => {
    const { without, ...others } = state;
    const kept = [...Object.entries(others), ...without.map((name) => ["without", name])];
    history.replaceState(null, "", `#${new URLSearchParams(kept)}`);
  };

  const entry = () => tree.entries[names.indexOf(state.run)];
  const course = () => entry().metrics[state.metric][state.subset];
  const place = () => {
    const steps = course().steps;
    if (state.step === "last") return steps.length - 1;
    const found = steps.findLastIndex((step) => step <= Number(state.step));
    return Math.max(0, found);
  };
  const printing = () => document.body.classList.contains("printing");
  const isDark = () => !printing() && (state.theme === "dark" || (state.theme === "auto" && dark.matches));

  // ------------------------------------------------------------------ from the tree to figures
  const array = ([offset, ...shape]) => {
    if (shape.length === 1) return numbers.subarray(offset, offset + shape[0]);
    const size = shape.slice(1).reduce((product, one) => product * one, 1);
    return Array.from({ length: shape[0] }, (_, row) => array([offset + row * size, ...shape.slice(1)]));
  };
  const unpacked = (part) => {
    if (Array.isArray(part)) return part.map(unpacked);
    if (typeof part === "string") return isDark() ? (Object.hasOwn(tree.darkened, part) ? tree.darkened[part] : part) : part;
    if (part === null || typeof part !== "object") return part;
    if ("$" in part) return array(part.$);
    return Object.fromEntries(Object.entries(part).map(([key, value]) => [key, unpacked(value)]));
  };
  // a run that knows no tokens is shown by steps; a finished model has neither
  const countedIn = () => (entry().tokens || entry().finished ? state.axis : "steps");
  const along = () => tree.axes[`${countedIn()}-${state.scale}`];
  const onCourse = (steps, of) => {
    const byTokens = countedIn() === "tokens";
    return steps.map((step) => {
      const count = byTokens ? of.tokens?.[step] ?? NaN : step;
      return along().floor === null ? count : Math.max(count, along().floor);
    });
  };
  // of plotly's own buttons one would offer to send the numbers to a server
  const settings = { responsive: true, displaylogo: false, showSendToCloud: false, plotlyServerURL: "",
    modeBarButtons: [["toImage"]] };
  const exactly = (traces) =>
    traces.flatMap(({ customdata }) => Array.from(customdata ?? [])).flatMap((row) => (typeof row === "number" ? row : Array.from(row)));
  const extent = (values) => {
    const there = values.filter((value) => !Number.isNaN(value));
    const [low, high] = [Math.min, Math.max].map((furthest) => there.reduce((a, b) => furthest(a, b), there[0]));
    return there.length ? `values from ${number(low)} to ${number(high)}` : "no value";
  };
  const uncounted = ({ meta }) =>
    countedIn() === "tokens" && meta?.along === "course" && meta.entry !== undefined && !tree.entries[meta.entry].tokens;
  // where there is little room: the legend below, one heatmap under the other
  const narrow = matchMedia("(max-width: 700px)");
  const stack = (layout) => {
    if (layout.legend) layout.legend = { ...layout.legend, orientation: "h", x: 0, y: -0.28, yanchor: "top" };
    const headings = layout.annotations ?? [];
    const number = headings.length;
    if (!number) return;
    const rows = new Set(headings.map(({ y }) => y)).size;
    const gap = 0.3 / number;
    headings.forEach((heading, index) => {
      const up = 1 - index * (1 + gap) / number;
      const suffix = index ? index + 1 : "";
      layout[`xaxis${suffix}`].domain = [0, 1];
      layout[`yaxis${suffix}`].domain = [Math.max(0, up - (1 + gap) / number + gap), up];
      Object.assign(heading, { x: 0, y: up, font: { size: 11 } });
    });
    layout.height *= number / rows;
  };
  const draw = (id, part, caption, small, spoken = () => small) => {
    at(`${id}-figure`).hidden = !part;
    if (!part) return;
    at(`${id}-caption`).replaceChildren(caption, Object.assign(document.createElement("small"), { textContent: small }));
    const { data, layout } = unpacked(part);
    const traces = data.filter((trace) => !state.without.includes(names[trace.meta?.entry]) && !uncounted(trace));
    at(id).setAttribute("aria-label", `${caption}. ${spoken(traces)}`);
    for (const trace of traces) {
      if (trace.meta?.role === "alerts") trace.visible = state.alerts === "yes";
      if (trace.meta?.along) {
        trace.x = onCourse(trace.x, tree.entries[trace.meta.entry ?? tree.entries.indexOf(entry())]);
        layout.xaxis = along().layout;
      }
    }
    layout.template = tree.themes[isDark() ? "dark" : "light"];
    layout.autosize = true;
    if (narrow.matches && !printing()) stack(layout);
    at(id).style.height = `${layout.height}px`;
    Plotly.react(at(id), traces, layout, settings);
    // for the mouse alone: a picture has nothing inside for those who hear the page
    for (const button of at(id).querySelectorAll(".modebar-btn")) button.tabIndex = -1;
    at(id).querySelector(".modebar-container")?.setAttribute("aria-hidden", "true");
  };

  // ------------------------------------------------------------------ the chosen step
  const atStep = (column) => {
    const { values, margins, floor } = course();
    const exact = array(values.$).map((layer) => layer[column]);
    const margin = array(margins.$).map((layer) => layer[column] || 0);
    const placed = (value) => (floor === null ? value : Math.max(value, floor));
    return { exact, margin, value: exact.map(placed), low: exact.map((value, layer) => placed(value - margin[layer])),
      high: exact.map((value, layer) => placed(value + margin[layer])) };
  };
  const extremes = (values) => {
    const known = values.map((value, index) => [value, index]).filter(([value]) => !Number.isNaN(value));
    if (!known.length) return "no value at any layer";
    const low = known.reduce((a, b) => (b[0] < a[0] ? b : a));
    const high = known.reduce((a, b) => (b[0] > a[0] ? b : a));
    const layers = course().layers;
    return `lowest ${number(low[0])} at layer ${layers[low[1]]}, highest ${number(high[0])} at layer ${layers[high[1]]}`;
  };
  const name = (column) => {
    if (entry().finished) return "finished model";
    const step = course().steps[column];
    const tokens = entry().tokens?.[step];
    return `step ${counted(step)}${tokens === undefined ? "" : `, ${tokens.toLocaleString("en-US", { notation: "compact" })} tokens`}`;
  };
  const showStep = () => {
    const column = place();
    const shown = atStep(column);
    const data = at("profile").data;
    const roles = { y: [], customdata: [] };
    const places = [];
    data.forEach((trace, index) => {
      const role = trace.meta?.role;
      if (!role) return;
      places.push(index);
      roles.y.push(shown[role]);
      roles.customdata.push(shown.exact);
    });
    Plotly.restyle("profile", roles, places);
    if (!at("heatmap-figure").hidden)
      Plotly.relayout("heatmap", { "shapes[0].x0": column - 0.5, "shapes[0].x1": column + 0.5 });
    if (!at("heads-figure").hidden) {
      const cells = array(course().by_head.$)[column];
      Plotly.restyle("heads", { z: [cells] }, [0]);
      at("heads-caption").querySelector("small").textContent = name(column);
      const all = cells.flatMap((layer) => Array.from(layer));
      at("heads").setAttribute("aria-label", `${at("heads-caption").firstChild.textContent}. ${name(column)}: ${extent(all)}`);
    }
    const text = `${name(column)}: ${extremes(shown.exact)}`;
    at("told").textContent = text;
    at("profile").setAttribute("aria-label", `${tree.metrics[state.metric].title} over depth. ${text}`);
    at("step").value = column;
    at("step").setAttribute("aria-valuetext", `${name(column)} (${column + 1} of ${course().steps.length})`);
    if (at("as-table").open) fillTable(column, shown);
  };
  const cell = (kind, text, scope) => {
    const made = Object.assign(document.createElement(kind), { textContent: text });
    if (scope) made.scope = scope;
    return made;
  };
  const fillTable = (column, shown) => {
    const { layers, reasons } = course();
    const head = document.createElement("tr");
    head.append(...["layer", "value", "95 % interval over probes", "note"].map((text) => cell("th", text, "col")));
    const rows = layers.map((layer, index) => {
      const row = document.createElement("tr");
      const [value, margin] = [shown.exact[index], shown.margin[index]];
      const interval = margin ? `${number(value - margin)} to ${number(value + margin)}` : "\u2013";
      row.append(cell("th", layer, "row"), cell("td", number(value)), cell("td", interval),
        cell("td", reasons?.[index][column] ?? ""));
      return row;
    });
    const title = `${tree.metrics[state.metric].title}, ${tree.subsets[state.subset][1]}, ${entry().label}, ${name(column)}`;
    const [header, body] = [document.createElement("thead"), document.createElement("tbody")];
    header.append(head);
    body.append(...rows);
    at("numbers-table").replaceChildren(cell("caption", title), header, body);
  };
  const choose = (column) => {
    const steps = course().steps;
    state.step = column >= steps.length - 1 ? "last" : String(steps[column]);
    keep();
    showStep();
  };

  // ------------------------------------------------------------------ playing
  let timer = null;
  const play = (on) => {
    clearInterval(timer);
    timer = null;
    state.playing = on ? "yes" : "no";
    at("play").setAttribute("aria-pressed", String(on));
    at("play").lastElementChild.textContent = on ? "Pause" : "Play";
    at("play").firstElementChild.textContent = on ? "\u23F8" : "\u25B6";
    keep();
    if (!on) return;
    if (place() === course().steps.length - 1) choose(0);
    // whoever asks for little motion gets it slowly
    const wait = still.matches ? 1200 : Math.max(80, Math.min(400, 12000 / course().steps.length));
    timer = setInterval(() => {
      const next = place() + 1;
      choose(next);
      if (next >= course().steps.length - 1) play(false);
    }, wait);
  };

  // ------------------------------------------------------------------ everything
  const spokenRange = () => {
    const all = array(course().values.$).flatMap((layer) => Array.from(layer));
    return `${course().layers.length} layers by ${course().steps.length} steps, ${extent(all)}`;
  };
  const show = () => {
    const now = course();
    const title = `${tree.metrics[state.metric].title}, ${tree.subsets[state.subset][1]}`;
    const several = now.steps.length > 1 && !entry().finished;
    at("meaning").textContent = tree.metrics[state.metric].meaning;
    for (const part of [at("play"), at("step"), at("step").labels[0]]) part.hidden = !several;
    at("step").max = now.steps.length - 1;
    const label = tree.entries.length > 1 ? `${entry().label}: ` : "";
    draw("heatmap", several ? now.heatmap : null, `${label}${title}`, `by layer and step${now.reasons ? "; grey: no value" : ""}`, spokenRange);
    draw("profile", now.profile, `${label}${title}`, [entry().finished ? "over depth" : "over depth, at the chosen step", now.interval].filter(Boolean).join("; "));
    draw("means", several ? now.means : null, `${label}${title}`, now.note,
      (traces) => `${now.note}; ${now.steps.length} steps, ${extent(exactly(traces))}`);
    draw("heads", now.heads, `${label}${title}, by attention head`, name(place()));
    at("heatmap-figure").parentElement.classList.toggle("alone", !several);
    if (several) {
      at("heatmap").removeAllListeners("plotly_click");
      at("heatmap").on("plotly_click", ({ points }) => choose(now.heatmap.data[0].x.indexOf(String(points[0].x))));
    }
    showStep();
    compare(title);
    keep();
  };
  const compare = (title) => {
    const parts = tree.compared[state.metric]?.[state.subset];
    at("together").hidden = !parts;
    if (!parts) return;
    at("together-note").textContent = parts.note;
    const out = new Set((parts.courses?.data ?? []).filter(uncounted).map(({ meta }) => names[meta.entry]));
    const left = out.size ? `; left out, their tokens are not known: ${[...out].join(", ")}` : "";
    const told = (small) => (traces) => `${small}; ${extent(exactly(traces))}`;
    for (const [id, what, small] of [
      ["profiles", "at the end", "over relative depth"],
      ["courses", "mean over layers", `during training${left}`],
      ["panels", "by relative depth and step", parts.panels_note],
    ]) draw(id, parts[id], `${title}, ${what}`, small, told(small));
    at("profiles-figure").parentElement.classList.toggle("alone", !parts.courses);
  };

  // ------------------------------------------------------------------ controls
  const option = (value, text) => Object.assign(document.createElement("option"), { value, textContent: text });
  const fill = () => {
    const metrics = entry().metrics;
    if (!Object.hasOwn(metrics, state.metric)) state.metric = Object.keys(metrics)[0];
    if (!Object.hasOwn(metrics[state.metric], state.subset)) state.subset = Object.keys(metrics[state.metric])[0];
    const grouped = tree.families.map(([family, members]) => {
      const group = Object.assign(document.createElement("optgroup"), { label: family });
      group.append(...members.filter((metric) => metrics[metric]).map((metric) => option(metric, tree.metrics[metric].title)));
      return group;
    });
    at("metric").replaceChildren(...grouped.filter((group) => group.children.length));
    at("subset").replaceChildren(...Object.keys(metrics[state.metric]).map((subset) => option(subset, tree.subsets[subset][0])));
    for (const id of ["run", "metric", "subset", "theme"]) at(id).value = state[id];
    const counts = tree.entries.some((one) => one.tokens);
    if (!counts) state.axis = "steps";
    at("axis").hidden = !counts;
    at("scale").hidden = tree.entries.every((one) => one.finished);
    at("axis-tokens").disabled = !entry().tokens && !entry().finished;
    at("axis-tokens").parentElement.title = at("axis-tokens").disabled ? `${entry().label} does not know its tokens` : "";
    at(`axis-${countedIn()}`).checked = at(`scale-${state.scale}`).checked = true;
    at("alerts").checked = state.alerts === "yes";
    for (const box of at("shown-runs").querySelectorAll("input")) box.checked = !state.without.includes(box.value);
  };
  const theme = () => (root.dataset.theme = isDark() ? "dark" : "light");
  const changed = () => {
    play(false);
    fill();
    theme();
    show();
    at("announced").textContent = `Showing ${at("profile-caption").firstChild.textContent}`;
  };
  const wire = () => {
    at("run").append(...names.map((name) => option(name, name)));
    at("run").parentElement.hidden = tree.entries.length === 1;
    for (const id of ["run", "metric", "subset", "theme"])
      at(id).onchange = (event) => { state[id] = event.target.value; at("gone").hidden = true; changed(); };
    for (const group of ["axis", "scale"])
      at(group).onchange = (event) => { state[group] = event.target.value; changed(); };
    at("alerts").onchange = (event) => { state.alerts = event.target.checked ? "yes" : "no"; changed(); };
    at("alerts").parentElement.hidden = !tree.alerts;
    at("controls").onsubmit = (event) => event.preventDefault();
    at("step").oninput = (event) => { play(false); choose(Number(event.target.value)); };
    at("play").onclick = () => play(timer === null);
    at("as-table").ontoggle = showStep;
    at("shown-runs").append(...names.map((name) => {
      const label = document.createElement("label");
      const box = Object.assign(document.createElement("input"), { type: "checkbox", value: name });
      label.append(box, name);
      return label;
    }));
    at("shown-runs").onchange = () => {
      const unchecked = at("shown-runs").querySelectorAll("input:not(:checked)");
      state.without = Array.from(unchecked, (box) => box.value);
      changed();
    };
    dark.onchange = narrow.onchange = changed;
    const below = () => root.style.setProperty("--below", `${at("controls").offsetHeight - 1}px`);
    new ResizeObserver(below).observe(at("controls"));
  };

  // ------------------------------------------------------------------ on paper
  let closed = [];
  onbeforeprint = () => {
    document.body.classList.add("printing");
    closed = [...document.querySelectorAll("details:not([open])")];
    for (const one of closed) one.open = true;
    theme();
    show();
    for (const plot of document.querySelectorAll(".js-plotly-plot")) Plotly.relayout(plot, { width: plot.clientWidth });
  };
  onafterprint = () => {
    document.body.classList.remove("printing");
    for (const one of closed) one.open = false;
    for (const plot of document.querySelectorAll(".js-plotly-plot")) Plotly.relayout(plot, { width: null, autosize: true });
    theme();
    show();
  };

  // ------------------------------------------------------------------ a run that goes on
  const PLACE = "repdyn-place";
  // what opens, by its section and words; numbers in them change
  const opening = () => {
    const seen = {};
    return [...document.querySelectorAll("details")].map((one) => {
      const words = one.firstElementChild.textContent.replace(/\d+/g, "");
      const key = `${one.closest("section")?.getAttribute("aria-labelledby")} ${words}`;
      seen[key] = (seen[key] ?? 0) + 1;
      return [`${key} ${seen[key]}`, one];
    });
  };
  const leave = () => {
    const open = opening().filter(([, one]) => one.open).map(([key]) => key);
    const left = { focus: document.activeElement?.id ?? "", open, y: scrollY };
    // a browser may keep nothing for a page
    try { sessionStorage.setItem(PLACE, JSON.stringify(left)); } catch { return; }
  };
  const comeBack = () => {
    let left = null;
    try {
      left = JSON.parse(sessionStorage.getItem(PLACE));
      sessionStorage.removeItem(PLACE);
    } catch { return; }
    if (!left) return;
    for (const [key, one] of opening()) if (left.open.includes(key)) one.open = true;
    showStep();
    if (left.focus) at(left.focus)?.focus({ preventScroll: true });
    scrollTo({ top: left.y, behavior: "instant" });
  };
  const live = () => {
    const { written, every, stale } = tree.live;
    const age = () => Date.now() / 1000 - written;
    const tell = () => {
      const clock = new Date(written * 1000).toISOString().slice(11, 19);
      const minutes = Math.round(age() / 60);
      const old = age() > stale;
      at("live").hidden = false;
      at("live").textContent = old ? `Last written ${clock} UTC, ${counted(minutes)} minutes ago: no longer live.` : `Live, written ${clock} UTC.`;
      return old;
    };
    const hold = () => {
      at("hold").setAttribute("aria-pressed", String(state.hold === "yes"));
      at("hold").textContent = state.hold === "yes" ? "Go on updating" : "Hold updates";
    };
    at("hold").hidden = false;
    at("hold").onclick = () => { state.hold = state.hold === "yes" ? "no" : "yes"; hold(); keep(); };
    hold();
    tell();
    let due = Date.now() + 1000 * every;
    setInterval(() => {
      const old = tell();
      if (Date.now() < due || state.hold === "yes" || document.hidden || printing()) return;
      // one that is old may yet go on, but there is no hurry
      due = Date.now() + 1000 * every * (old ? 10 : 1);
      leave();
      location.reload();
    }, 500);
    comeBack();
  };

  const begin = () => {
    read();
    const resume = state.playing === "yes" && !still.matches;
    changed();
    if (resume) play(true);
    root.dataset.ready = "yes";
  };
  read();
  wire();
  begin();
  // an address that was edited, or a link into this very page
  onhashchange = begin;
  if (tree.live) live();
})();
