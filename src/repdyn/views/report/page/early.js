"use strict";
// A page that is being copied may be incomplete: reload it if its end is missing.
addEventListener("DOMContentLoaded", () => {
  const { every } = document.documentElement.dataset;
  if (every && !document.getElementById("end")) setTimeout(() => location.reload(), 1000 * every);
});
