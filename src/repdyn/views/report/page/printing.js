// The page on paper: light, wide, everything open.
let closed = [];
onbeforeprint = () => {
  document.body.classList.add("printing");
  closed = [...document.querySelectorAll("details:not([open])")];
  for (const one of closed) one.open = true;
  theme();
  showPage();
  show();
  for (const plot of document.querySelectorAll(".js-plotly-plot")) Plotly.relayout(plot, { width: plot.clientWidth });
};
onafterprint = () => {
  document.body.classList.remove("printing");
  for (const one of closed) one.open = false;
  for (const plot of document.querySelectorAll(".js-plotly-plot")) Plotly.relayout(plot, { width: null, autosize: true });
  changed();
};
