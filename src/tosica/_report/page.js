// What is folded is printed, too; and a link to a folded part opens it.
"use strict";
addEventListener("beforeprint", () => {
  document.querySelectorAll("details").forEach((part) => { part.open = true; });
});
const open = () => {
  const part = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (part && part.tagName === "DETAILS") part.open = true;
};
addEventListener("hashchange", open);
open();
// The keyboard reaches the boxes of tables that are too wide, and no others.
const boxes = [...document.querySelectorAll(".scroll")];
const reach = () => boxes.forEach((box) => {
  if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
  else box.removeAttribute("tabindex");
});
addEventListener("resize", reach);
document.addEventListener("toggle", reach, true);
reach();
