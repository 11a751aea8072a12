// The controls of the map: they ask the map's own callbacks to filter, find and colour.
"use strict";
(async () => {
  const get = (id) => document.getElementById(id);
  const status = get("map-status");
  const item = JSON.parse(get("map-data").textContent);
  await Bokeh.embed.embed_item(item);
  const page = Bokeh.documents[Bokeh.documents.length - 1];
  const plot = page.roots()[0];
  const [control, paint] = plot.tags;
  const ask = (data) => control.execute(plot, data);
  const boxes = [...document.querySelectorAll("#label-filter input[type=checkbox]")];
  const total = Number(status.dataset.total);
  const written = (n) => n.toLocaleString("en").replaceAll(",", "\u202f");

  const show = async () => {
    const least = Number(get("least").value);
    get("least-shown").textContent = least.toFixed(2);
    const labels = boxes.filter((box) => box.checked).map((box) => Number(box.value));
    const n = await ask({ask: "show", least, labels});
    status.textContent = `${written(n)} of ${written(total)} cells are shown.`;
  };
  let waiting = 0;
  const showSoon = () => {
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(show);
  };
  get("least").addEventListener("input", showSoon);
  boxes.forEach((box) => box.addEventListener("change", showSoon));
  for (const [id, checked] of [["all-labels", true], ["no-labels", false]])
    get(id).addEventListener("click", () => {
      boxes.forEach((box) => { box.checked = checked; });
      showSoon();
    });

  get("name-labels").addEventListener("change", (event) =>
    ask({ask: "name", on: event.target.checked}));
  get("colour-by").addEventListener("change", (event) => {
    paint.execute(plot, {by: event.target.value});
    for (const legend of document.querySelectorAll("[data-legend]"))
      legend.hidden = legend.dataset.legend !== event.target.value;
  });

  const list = (rows) => {
    get("found").hidden = !rows.length;
    get("found").querySelector("tbody").replaceChildren(...rows.map(([name, ...values]) => {
      const row = document.createElement("tr");
      const head = document.createElement("th");
      head.scope = "row";
      head.textContent = name;
      row.append(head, ...values.map((value, i) => {
        const cell = document.createElement("td");
        if (i) cell.className = "n";
        cell.textContent = value;
        return cell;
      }));
      return row;
    }));
  };
  const find = async (event) => {
    event.preventDefault();
    const text = get("find-text").value.trim();
    const {count, rows} = await ask({ask: "find", text});
    list(rows);
    get("find-status").textContent = !text ? ""
      : count === 0 ? `No cell on the map has “${text}” in its name.`
      : `${written(count)} ${count === 1 ? "cell has" : "cells have"} “${text}” in the name`
        + (count > rows.length ? `; the first ${rows.length} are listed.` : ".");
  };
  get("find").addEventListener("submit", find);
  get("find-text").addEventListener("search", find);

  // A click or a tap lists the cell, which a finger cannot point at.
  plot.on_event("tap", async ({x, y}) => {
    const {rows} = await ask({ask: "near", x, y});
    list(rows);
    get("find-status").textContent = rows.length
      ? `${rows[0][0]}: ${rows[0][1]}, probability ${rows[0][2]}.` : "";
  });
  // On a touch screen, a finger on the map scrolls the page, until panning is chosen above.
  if (matchMedia("(pointer: coarse)").matches)
    plot.toolbar.tools.filter((tool) => tool.type === "PanTool").forEach((tool) => {
      tool.active = false;
    });
  const drawn = () => {
    if (!performance.getEntriesByName("map-drawn").length) performance.mark("map-drawn");
  };
  if (page.is_idle) requestAnimationFrame(drawn);
  else page.idle.connect(() => requestAnimationFrame(drawn));
})();
