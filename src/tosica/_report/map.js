// The map and its controls: they filter, find and color the cells.
"use strict";
(async () => {
  const get = (id) => document.getElementById(id);
  const status = get("map-status");
  const item = JSON.parse(get("map-data").textContent);
  // What the pointer shows is written by these.
  let names = null;
  window.tosicaMap = {
    labels: item.labels,
    name: (i) => names[i],
    share: (value, digits) => (value / item.parts).toFixed(digits),
  };
  await Bokeh.embed.embed_item(item);
  const page = Bokeh.documents[Bokeh.documents.length - 1];
  const plot = page.roots()[0];
  const model = (name) => page.get_model_by_name(name);
  const points = model("points"), source = points.data_source, hidden = points.view.filter;
  names = new TextDecoder().decode(new Uint8Array(model("names").get("text"))).split("\n");
  const label = source.get("label"), probability = source.get("probability");
  const x = source.get("x"), y = source.get("y");
  const boxes = [...document.querySelectorAll("#label-filter input[type=checkbox]")];
  const total = Number(status.dataset.total);
  const written = (n) => n.toLocaleString("en").replaceAll(",", "\u202f");

  const show = () => {
    const least = Number(get("least").value);
    get("least-shown").textContent = least.toFixed(2);
    const wanted = new Set(boxes.filter((box) => box.checked).map((box) => Number(box.value)));
    hidden.booleans = Array.from(label, (code, i) =>
      wanted.has(code) && probability[i] >= least * item.parts);
    const n = hidden.booleans.reduce((sum, is) => sum + is, 0);
    status.textContent = `${written(n)} of ${written(total)} ${total === 1 ? "cell is" : "cells are"} shown.`;
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

  // Paper has no buttons.
  addEventListener("beforeprint", () => { plot.toolbar.visible = false; });
  addEventListener("afterprint", () => { plot.toolbar.visible = true; });

  get("name-labels").addEventListener("change", (event) => {
    model("labels").visible = event.target.checked;
  });
  get("color-by").addEventListener("change", (event) => {
    const by = event.target.value;
    points.glyph.fill_color = {field: by, transform: model(`by ${by}`)};
    for (const legend of document.querySelectorAll("[data-legend]"))
      legend.hidden = legend.dataset.legend !== by;
  });

  // Cells that were asked for get a ring, and the first of them are listed.
  const list = (cells) => {
    const ringed = cells.slice(0, 500);
    model("rings").data = {x: ringed.map((i) => x[i]), y: ringed.map((i) => y[i])};
    const rows = cells.slice(0, 20).map((i) => [
      names[i], item.labels[label[i]], tosicaMap.share(probability[i], 3),
      source.columns().includes("pvalue") ? tosicaMap.share(source.get("pvalue")[i], 4) : "–"]);
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
    return rows;
  };
  const find = (event) => {
    event.preventDefault();
    const text = get("find-text").value.trim(), wanted = text.toLowerCase(), cells = [];
    if (text) names.forEach((name, i) => {
      if (name.toLowerCase().includes(wanted)) cells.push(i);
    });
    const n = cells.length, shown = list(cells).length;
    get("find-status").textContent = !text ? ""
      : n === 0 ? `No cell on the map has “${text}” in its name.`
      : `${written(n)} ${n === 1 ? "cell has" : "cells have"} “${text}” in the name`
        + (n > shown ? `; the first ${shown} are listed.` : ".");
  };
  get("find").addEventListener("submit", find);
  get("find-text").addEventListener("search", find);

  // A click or a tap lists the nearest cell, which a finger cannot point at.
  plot.on_event("tap", (at) => {
    const width = plot.x_range.end - plot.x_range.start;
    const height = plot.y_range.end - plot.y_range.start;
    let nearest = 0.02 ** 2, cell = -1;
    for (let i = 0; i < x.length; i++) {
      if (hidden.booleans && !hidden.booleans[i]) continue;
      const far = ((x[i] - at.x) / width) ** 2 + ((y[i] - at.y) / height) ** 2;
      if (far < nearest) { nearest = far; cell = i; }
    }
    const [row] = list(cell < 0 ? [] : [cell]);
    get("find-status").textContent = row ? `${row[0]}: ${row[1]}, probability ${row[2]}.` : "";
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
