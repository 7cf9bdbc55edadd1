// Numbers in short: the rounding of repdyn.utils.numbers, which every other view has.
const number = (value) => {
  if (Number.isNaN(value)) return "no value";
  const size = Math.abs(value);
  if (size >= 999.5 && size < 999999.5) return formatted(Math.round(value));
  const rounded = Number(value.toPrecision(3));
  if (rounded === 0 || (Math.abs(rounded) >= 1e-4 && size < 999.5)) return String(rounded);
  if (!Number.isFinite(value)) return value > 0 ? "inf" : "-inf";
  const [digits, sign, power] = value.toExponential(2).split(/e([+-])/);
  return `${Number(digits)}e${sign}${power.padStart(2, "0")}`;
};
// of parameters or tokens
const shortCount = (count) => {
  for (const [size, letter] of [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "k"]]) {
    const scaled = count / size;
    // what would round to a thousand of the next smaller unit is one of this
    if (scaled >= 0.9995) return `${scaled >= 9.95 ? scaled.toFixed(0) : Number(scaled.toFixed(1))}${letter}`;
  }
  return count.toFixed(0);
};
const formatted = (value) => value.toLocaleString("en-US");
