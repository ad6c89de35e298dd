(function () {
  "use strict";
  function byId(id) { return document.getElementById(id); }
  function make(name, text, attributes) {
    var made = document.createElement(name);
    if (text !== undefined && text !== null) { made.textContent = text; }
    Object.keys(attributes || {}).forEach(function (key) { made.setAttribute(key, attributes[key]); });
    return made;
  }
  function ago(seconds) {
    var units = [[86400, "d"], [3600, "h"], [60, "min"]];
    for (var i = 0; i < units.length; i++) {
      if (seconds >= units[i][0]) { return Math.floor(seconds / units[i][0]) + " " + units[i][1] + " ago"; }
    }
    return Math.max(Math.floor(seconds), 0) + " s ago";
  }
  var ahead = 0;  /* how far the server's clock is before ours */
  function clock() { return Date.now() / 1000 + ahead; }

  /* A stream of news, closed while nobody sees the page: a browser has few connections to one server. */
  function follow(address, kinds, lost) {
    var source = null, ended = false;
    function open() {
      if (source || ended || document.hidden) { return; }
      source = new EventSource(address());
      source.onopen = function () { lost(false); };
      source.onerror = function () {
        lost(true);
        if (source && source.readyState === 2) { close(); setTimeout(open, 5000); }
      };
      Object.keys(kinds).forEach(function (kind) {
        source.addEventListener(kind, function (event) {
          var told = JSON.parse(event.data);
          if (told.now) { ahead = told.now - Date.now() / 1000; }
          kinds[kind](told);
        });
      });
    }
    function close() { if (source) { source.close(); source = null; } }
    document.addEventListener("visibilitychange", function () { if (document.hidden) { close(); } else { open(); } });
    open();
    return { again: function () { close(); open(); }, end: function () { ended = true; close(); } };
  }
  function tellLost(isLost) {
    var note = byId("note");
    note.hidden = !isLost;
    note.textContent = isLost ? "The board does not answer; it is tried again." : "";
  }

  /* New figures, at most every five seconds, and seldom if they take long to make. */
  function renewer(address) {
    var next = 0, waiting = null;
    return function () {
      if (!address || !window.shoal.update || waiting) { return; }
      waiting = setTimeout(function () {
        var began = Date.now();
        fetch(address).then(function (answer) { return answer.ok ? answer.json() : null; }).then(function (fresh) {
          if (fresh) { window.shoal.update(fresh); }
        }).catch(function () {}).then(function () {
          waiting = null;
          next = Date.now() + Math.max(5000, 30 * (Date.now() - began));
        });
      }, Math.max(next - Date.now(), 0));
    };
  }

  function listPage(home) {
    var FIXED = JSON.parse(home.dataset.heads), AGE = FIXED.indexOf("changed"), NAME = FIXED.indexOf("folder");
    var STATES = ["running", "finished", "interrupted", "failed", "killed", "new"];
    var rows = {}, meets = null, problem = "", damaged = "", chosen = {}, body = byId("rows"), stream = null, late = null;
    var asked = new URLSearchParams(location.search), sort = asked.get("sort") || "changed";
    var fields = {};
    home.querySelectorAll("#filters [name]").forEach(function (field) { fields[field.name] = field; });
    STATES.forEach(function (state) { fields.state.appendChild(make("option", state, { value: state })); });
    Object.keys(fields).forEach(function (name) { fields[name].value = asked.get(name) || ""; });

    function columns() {
      return fields.columns.value.split(/[\s,]+/).filter(function (name, i, all) { return name && all.indexOf(name) === i; });
    }
    function heads() { return FIXED.concat(columns()); }
    function address() {
      var url = home.dataset.events, query = [];
      if (fields.where.value.trim()) { query.push("where=" + encodeURIComponent(fields.where.value)); }
      if (columns().length) { query.push("columns=" + encodeURIComponent(columns().join(","))); }
      return query.length ? url + (url.includes("?") ? "&" : "?") + query.join("&") : url;
    }
    function remember() {
      var kept = new URLSearchParams();
      if (asked.get("sweep") !== null) { kept.set("sweep", asked.get("sweep")); }
      Object.keys(fields).forEach(function (name) { if (fields[name].value) { kept.set(name, fields[name].value); } });
      if (sort !== "changed") { kept.set("sort", sort); }
      var query = kept.toString();
      history.replaceState(null, "", query ? "?" + query : location.pathname);
    }

    function drawHeads() {
      var line = byId("heads");
      line.textContent = "";
      line.appendChild(make("th", "", { scope: "col" }));
      heads().forEach(function (name) {
        var head = make("th", null, { scope: "col" }), button = make("button", name, { type: "button" });
        var own = sort.replace(/^-/, "") === name;
        if (own) { head.ariaSort = sort[0] === "-" ? "ascending" : "descending"; }
        button.addEventListener("click", function () {
          sort = sort === name ? "-" + name : name;
          remember(); drawHeads(); arrange();
        });
        head.appendChild(button);
        line.appendChild(head);
      });
    }
    function draw(row) {
      var line = make("tr"), box = make("input", null, { type: "checkbox", "aria-label": "compare " + row.name });
      box.checked = Boolean(chosen[row.at]);
      box.addEventListener("change", function () {
        if (box.checked) { chosen[row.at] = true; } else { delete chosen[row.at]; }
        drawChosen();
      });
      line.appendChild(make("td")).appendChild(box);
      row.cells.forEach(function (cell, place) {
        var made = make("td", place === AGE ? ago(clock() - cell[1]) : place === NAME ? null : cell[0]);
        if (place === NAME) {
          made.appendChild(make("a", cell[0], { href: home.dataset.base + "at/" + (row.at ? row.at + "/" : ""), title: cell[0] }));
        }
        if (place === 0) { made.className = "state " + row.state; }
        if (typeof cell[1] === "number") { made.className = "number"; }
        line.appendChild(made);
      });
      row.text = (row.cells.map(function (cell) { return cell[0]; }).join(" ")).toLowerCase();
      if (row.line) { row.line.replaceWith(line); }
      row.line = line;
    }
    function isShown(row) {
      var words = fields.text.value.toLowerCase().split(/\s+/);
      return (!fields.state.value || row.state === fields.state.value) && (!meets || meets.has(row.key)) &&
        words.every(function (word) { return row.text.includes(word); });
    }
    function arrange() {
      var name = sort.replace(/^-/, ""), way = sort[0] === "-" ? 1 : -1, place = heads().indexOf(name);
      if (place < 0) { place = AGE; way = -1; }
      var all = Object.keys(rows).map(function (key) { return rows[key]; });
      var shown = all.filter(isShown).sort(function (a, b) {
        var x = a.cells[place][1], y = b.cells[place][1];
        if (x === null || x === undefined) { return y === null || y === undefined ? 0 : 1; }
        if (y === null || y === undefined) { return -1; }
        return way * (typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y)));
      });
      var lines = shown.map(function (row) { return row.line; });
      if (lines.length !== body.rows.length || lines.some(function (line, i) { return body.rows[i] !== line; })) { body.replaceChildren.apply(body, lines); }
      var running = shown.filter(function (row) { return row.state === "running"; }).length;
      var count = shown.length + (shown.length === all.length ? "" : " of " + all.length) + (all.length === 1 ? " run" : " runs");
      byId("told").textContent = problem || count + (running ? ", " + running + " running" : "") +
        (shown.some(function (row) { return row.cells[0][0].endsWith("*"); }) ? "; *: can be continued with shoal resume" : "") +
        (damaged ? "; " + damaged : "");
      byId("told").classList.toggle("problem", Boolean(problem));
    }
    function drawChosen() {
      var count = Object.keys(chosen).length, button = byId("compare");
      button.disabled = count < 2;
      button.textContent = count < 2 ? "Compare" : "Compare " + count + " runs";
    }
    byId("compare").addEventListener("click", function () {
      var query = Object.keys(chosen).map(function (at) { return "run=" + encodeURIComponent(at); }).join("&");
      location.href = home.dataset.base + "at/compare?" + query;
    });
    function take(told) {
      if (told.names) {
        byId("names").replaceChildren.apply(byId("names"), told.names.map(function (name) { return make("option", null, { value: name }); }));
      }
      damaged = told.damaged || "";
      if (told.problem !== undefined) { problem = told.problem; }
      if (told.meets) { meets = problem ? null : new Set(told.meets); }
      (told.gone || []).forEach(function (key) { if (rows[key]) { delete chosen[rows[key].at]; delete rows[key]; } });
      (told.rows || []).forEach(function (row) {
        row.line = rows[row.key] ? rows[row.key].line : null;
        rows[row.key] = row;
        draw(row);
      });
      if (told.sweeps) {
        var list = document.querySelector("#sweeps ul");
        list.textContent = "";
        told.sweeps.forEach(function (sweep) {
          var item = make("li"), slash = sweep.at ? sweep.at + "/" : "";
          item.appendChild(make("a", sweep.name, { href: home.dataset.base + "at/" + slash }));
          item.appendChild(document.createTextNode(" · "));
          item.appendChild(make("a", "trials", { href: home.dataset.base + "?sweep=" + encodeURIComponent(sweep.at) }));
          list.appendChild(item);
        });
        byId("sweeps").hidden = !told.sweeps.length;
      }
      drawChosen();
      arrange();
    }
    /* A stream begins with all rows; those of before are gone. */
    function again() {
      rows = {}; meets = null; problem = "";
      drawHeads();
      stream.again();
    }
    byId("filters").addEventListener("input", function (event) {
      remember();
      if (event.target.name === "where" || event.target.name === "columns") { clearTimeout(late); late = setTimeout(again, 400); } else { arrange(); }
    });
    setInterval(function () {
      Object.keys(rows).forEach(function (key) { rows[key].line.cells[AGE + 1].textContent = ago(clock() - rows[key].cells[AGE][1]); });
    }, 10000);
    drawHeads();
    var opened = function (isLost) { if (!isLost) { rows = {}; } tellLost(isLost); };
    stream = follow(address, { runs: take }, opened);
  }

  function runPage(home) {
    var log = byId("log"), box = byId("follow"), renew = renewer(home.dataset.figures), seen = false, MOST = 2000;
    var stream = follow(function () { return home.dataset.events; }, {
      run: function (told) {
        byId("standing").textContent = told.standing;
        var list = byId("numbers");
        list.textContent = "";
        told.numbers.concat([["changed", ago(clock() - told.changed)]]).forEach(function (pair) {
          var one = make("div");
          one.appendChild(make("dt", pair[0]));
          one.appendChild(make("dd", pair[1]));
          list.appendChild(one);
        });
        if (seen && !home.dataset.figures && told.numbers[0][1] !== "0") { location.reload(); }
        if (seen) { renew(); }
        seen = true;
      },
      log: function (told) {
        if (told.again) { log.textContent = ""; }
        told.lines.forEach(function (line) { log.appendChild(document.createTextNode(line + "\n")); });
        while (log.childNodes.length > MOST) { log.firstChild.remove(); }
        if (box.checked) { log.scrollTop = log.scrollHeight; }
      },
      incidents: function (told) {
        byId("failures").textContent = told.count + (told.count === 1 ? " failure" : " failures") + " of environments" +
          (told.count > told.rows.length ? "; the newest " + told.rows.length : "") + "; shoal incidents RUN has all of each.";
        byId("incident-table").hidden = false;
        byId("incidents").replaceChildren.apply(byId("incidents"), told.rows.slice().reverse().map(function (cells) {
          var line = make("tr");
          cells.forEach(function (text, place) { line.appendChild(make("td", text, place === cells.length - 1 ? { "class": "long" } : {})); });
          return line;
        }));
      },
      gone: function () {
        byId("standing").textContent = "The run is gone, or cannot be read any more.";
        stream.end();
      }
    }, tellLost);
  }

  function severalPage(home) {
    var renew = renewer(home.dataset.figures);
    setInterval(function () { if (!document.hidden) { renew(); } }, 10000);
  }

  [["list", listPage], ["run", runPage], ["several", severalPage]].forEach(function (pair) {
    var home = byId(pair[0]);
    if (home) { pair[1](home); }
  });
})();
