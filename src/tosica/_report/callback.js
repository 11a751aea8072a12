// What the controls ask of the map: `show` filters, `find` looks for names and `near` for the cell
// at a place, and `name` writes the labels. Bokeh makes a function of this.
const label = source.get("label"), probability = source.get("probability")
const x = source.get("x"), y = source.get("y")
if (cb_data.ask == "name") { named.visible = cb_data.on; return }
if (cb_data.ask == "show") {
  const least = cb_data.least * parts, wanted = new Set(cb_data.labels)
  const shown = Array.from(label, (code, i) => wanted.has(code) && probability[i] >= least)
  hidden.booleans = shown
  return shown.reduce((n, is) => n + is, 0)
}
const cells = []
if (cb_data.ask == "near") {
  const width = plot.x_range.end - plot.x_range.start
  const height = plot.y_range.end - plot.y_range.start
  let nearest = reach ** 2, cell = -1
  for (let i = 0; i < x.length; i++) {
    if (hidden.booleans && !hidden.booleans[i]) continue
    const far = ((x[i] - cb_data.x) / width) ** 2 + ((y[i] - cb_data.y) / height) ** 2
    if (far < nearest) { nearest = far; cell = i }
  }
  if (cell >= 0) cells.push(cell)
} else {
  const text = cb_data.text.trim().toLowerCase()
  if (text) decoded.forEach((name, i) => { if (name.toLowerCase().includes(text)) cells.push(i) })
}
const ringed = cells.slice(0, mostRinged), pvalue = source.columns().includes("pvalue")
found.data = {x: ringed.map((i) => x[i]), y: ringed.map((i) => y[i])}
const rows = cells.slice(0, mostListed).map((i) => [
  decoded[i], labels[label[i]], (probability[i] / parts).toFixed(3),
  pvalue ? (source.get("pvalue")[i] / parts).toFixed(4) : "–"])
return {count: cells.length, rows}
