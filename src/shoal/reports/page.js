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
})();
