(function () {
  var note = document.getElementById("note"), pinned = null, shown = null;
  function pick(t) {
    if (t === shown) { return; }
    shown = t;
    document.querySelectorAll(".on").forEach(function (e) { e.classList.remove("on"); });
    document.body.classList.toggle("picked", t !== null);
    note.hidden = t === null;
    if (t === null) { return; }
    document.querySelectorAll('[data-t="' + t + '"]').forEach(function (e) {
      e.classList.add("on");
      var title = e.querySelector("title");
      if (title) { note.textContent = title.textContent; e.parentNode.appendChild(e); }
    });
  }
  function of(event) {
    var found = event.target.closest ? event.target.closest("[data-t]") : null;
    return found ? found.getAttribute("data-t") : null;
  }
  document.addEventListener("mouseover", function (event) { if (pinned === null) { pick(of(event)); } });
  document.addEventListener("click", function (event) {
    if (event.target.closest("a, button, code")) { return; }
    pinned = of(event) === pinned ? null : of(event);
    pick(pinned);
  });
  document.addEventListener("keydown", function (event) { if (event.key === "Escape") { pinned = null; pick(null); } });
  document.querySelectorAll("th button").forEach(function (button) {
    button.addEventListener("click", function () {
      var head = button.parentNode, body = head.closest("table").tBodies[0], way = head.ariaSort === "ascending" ? -1 : 1;
      head.parentNode.querySelectorAll("th").forEach(function (other) { other.ariaSort = null; });
      head.ariaSort = way === 1 ? "ascending" : "descending";
      function value(row) { var cell = row.cells[head.cellIndex]; return cell.dataset.v || cell.textContent; }
      Array.from(body.rows).sort(function (a, b) {
        var x = value(a), y = value(b), both = x - y;
        return way * (isNaN(both) ? x.localeCompare(y) : both);
      }).forEach(function (row) { body.appendChild(row); });
    });
  });
  document.querySelectorAll("input.filter").forEach(function (field) {
    var rows = Array.from(field.parentNode.querySelectorAll("tbody tr"));
    field.addEventListener("input", function () {
      var words = field.value.toLowerCase().split(/\s+/);
      rows.forEach(function (row) {
        var text = row.textContent.toLowerCase();
        row.hidden = !words.every(function (word) { return text.includes(word); });
      });
    });
  });
  function save(text, kind, name) {
    var link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: kind }));
    link.download = name;
    link.click();
    setTimeout(function () { URL.revokeObjectURL(link.href); }, 1000);
  }
  var LOOKS = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-family", "font-size", "font-weight", "paint-order"];
  function saveSvg(drawing, name) {
    var copy = drawing.cloneNode(true), own = drawing.querySelectorAll("*"), copied = copy.querySelectorAll("*");
    own.forEach(function (element, place) {
      var style = getComputedStyle(element);
      LOOKS.forEach(function (look) { copied[place].style.setProperty(look, style.getPropertyValue(look)); });
    });
    copy.style.background = getComputedStyle(document.body).backgroundColor;
    save(new XMLSerializer().serializeToString(copy), "image/svg+xml", name + ".svg");
  }
  function csvText(rows) {
    return rows.map(function (row) {
      return row.map(function (one) {
        var text = one === null ? "" : String(one);
        if (typeof one === "string" && /^[=+@\t\r-]/.test(text) && isNaN(text)) { text = "'" + text; }  // no formula of a spreadsheet's
        return /[",\n]/.test(text) ? '"' + text.replace(/"/g, '""') + '"' : text;
      }).join(",");
    }).join("\n") + "\n";
  }
  document.querySelectorAll(".chart").forEach(function (home, place) {
    var name = "figure-" + (place + 1), rows = home.dataset.rows;
    function add(words, act) {
      var button = document.createElement("button");
      button.type = "button";
      button.className = "tool";
      button.textContent = words;
      button.addEventListener("click", act);
      home.after(button, " ");
    }
    if (rows) { add("Save CSV", function () { window.shoal.save(csvText(JSON.parse(rows)), "text/csv", name + ".csv"); }); }
    add("Save SVG", function () { window.shoal.saveSvg(home.querySelector("svg"), name); });
  });
  window.shoal = { save: save, saveSvg: saveSvg, csvText: csvText };
})();
