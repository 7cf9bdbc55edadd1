"use strict";
// While a run goes on a page can be met half copied: one that has no end is read anew.
addEventListener("DOMContentLoaded", () => {
  const { every } = document.documentElement.dataset;
  if (every && !document.getElementById("end")) setTimeout(() => location.reload(), 1000 * every);
});
