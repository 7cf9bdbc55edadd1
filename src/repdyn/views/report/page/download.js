// The selected metric as a table of comma-separated values.
const quoted = (value) => {
  const text = String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
};
const csv = () => {
  const { layers, steps, reasons } = series();
  const [values, lows, highs] = ["values", "lows", "highs"].map((name) => array(series()[name].$));
  const digits = (value) => (Number.isNaN(value) ? "" : Number(value.toPrecision(7)));
  const lines = steps.flatMap((step, column) => layers.map((layer, row) => [run().label, state.metric, state.subset,
    run().finished ? "" : step, run().tokens?.[step] ?? "", layer, digits(values[row][column]),
    digits(lows[row][column]), digits(highs[row][column]),
    reasons?.[row][column] ?? ""]));
  const head = ["run", "metric", "subset", "step", "tokens", "layer", "value", "interval_low", "interval_high", "reason"];
  return [head, ...lines].map((line) => line.map(quoted).join(",")).join("\r\n");
};
const download = () => {
  const address = URL.createObjectURL(new Blob([csv()], { type: "text/csv" }));
  const name = `${run().label}_${state.metric}_${state.subset}`.replace(/[^\w.-]+/g, "_");
  Object.assign(document.createElement("a"), { href: address, download: `${name}.csv` }).click();
  URL.revokeObjectURL(address);
};
