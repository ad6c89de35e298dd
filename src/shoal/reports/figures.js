(function () {
  "use strict";
  var place = document.getElementById("data");
  if (!place) { return; }
  var data = JSON.parse(place.textContent), NS = "http://www.w3.org/2000/svg", COLOURS = 8;
  var shared = { axis: 0, smooth: 1, zooms: {}, runs: !data.groups.some(function (g) { return g.runs.length > 1; }), hidden: {} };
  var figures = [];

  function numbers(text, kind) {
    var raw = atob(text), bytes = new Uint8Array(raw.length);
    for (var i = 0; i < raw.length; i++) { bytes[i] = raw.charCodeAt(i); }
    return new kind(bytes.buffer);
  }
  function element(name, attributes, text) {
    var made = document.createElementNS(NS, name);
    Object.keys(attributes || {}).forEach(function (key) { made.setAttribute(key, attributes[key]); });
    if (text !== undefined) { made.textContent = text; }
    return made;
  }
  function short(value) {
    var size = Math.abs(value);
    if (size < 1e-12) { return "0"; }
    if (size >= 1e9) { return digits(value / 1e9) + "G"; }
    if (size >= 1e6) { return digits(value / 1e6) + "M"; }
    if (size >= 1e4) { return digits(value / 1e3) + "k"; }
    return digits(value);
  }
  function digits(value) {
    var size = Math.abs(value);
    return size >= 1e5 || (size > 0 && size < 1e-4) ? value.toExponential(2) : String(+value.toPrecision(4));
  }

  /* A long run keeps few points of each result, and the axes at some of its lines: in between they are straight. */
  function axisOf(run, at) {
    if (!run.at) { run.at = numbers(run.knots, Uint32Array); run.along = {}; }
    var name = data.axes[shared.axis].name, along = run.along[name];
    if (!along) { along = run.along[name] = numbers(run.axes[name], Float64Array); }
    var found = new Float64Array(at.length), k = 0;
    for (var i = 0; i < at.length; i++) {
      while (k + 2 < run.at.length && run.at[k + 1] < at[i]) { k++; }
      var next = Math.min(k + 1, run.at.length - 1), wide = run.at[next] - run.at[k];
      found[i] = wide ? along[k] + (along[next] - along[k]) * (at[i] - run.at[k]) / wide : along[k];
    }
    return found;
  }
  /* A figure has an axis of its own, or the one that is chosen for all; those of one axis are zoomed together. */
  function axisOfFigure(spec) { return spec.axis || data.axes[shared.axis]; }
  function smooth(values) {
    var count = values.length, half = Math.floor(shared.smooth / 2);
    if (half < 1 || count < 3) { return values; }
    var sums = new Float64Array(count + 1), found = new Float64Array(count);
    for (var i = 0; i < count; i++) { sums[i + 1] = sums[i] + values[i]; }
    for (var j = 0; j < count; j++) {
      var wide = Math.min(half, j, count - 1 - j);
      found[j] = (sums[j + wide + 1] - sums[j - wide]) / (2 * wide + 1);
    }
    return found;
  }

  /* Lines of a figure's own: of trials, or of episodes. Those with the same `t` are highlighted together. */
  function ownLine(line) {
    if (!line.read) {
      line.read = { x: numbers(line.x, Float64Array), y: numbers(line.y, Float32Array) };
      if (line.low) { line.read.low = numbers(line.low, Float32Array); line.read.high = numbers(line.high, Float32Array); }
      line.read.rests = (line.rests || []).map(function (rest) { return { x: numbers(rest.x, Float64Array), y: numbers(rest.y, Float32Array) }; });
    }
    var read = line.read, found = { title: line.title, kind: line.kind, t: line.t, end: line.end, strong: true, x: read.x, y: smooth(read.y), rests: read.rests };
    if (read.low) { found.low = smooth(read.low); found.high = smooth(read.high); }
    return found;
  }

  /* What is drawn now: bands of groups with several runs, and the lines of runs. */
  function linesOf(spec) {
    if (spec.lines) { return spec.lines.map(ownLine); }
    var found = [], axis = data.axes[shared.axis].name;
    spec.groups.forEach(function (own) {
      if (shared.hidden[own.group]) { return; }
      var group = data.groups[own.group], band = own.bands[axis];
      if (band) {
        found.push({
          group: own.group, title: group.label, strong: true, x: numbers(band.x, Float64Array),
          y: smooth(numbers(band.middle, Float32Array)), low: smooth(numbers(band.low, Float32Array)),
          high: smooth(numbers(band.high, Float32Array))
        });
      }
      if (band && !shared.runs) { return; }
      own.runs.forEach(function (series) {
        var run = group.runs[series.run], at = numbers(series.at, Uint32Array);
        var line = { group: own.group, title: group.runs.length > 1 ? group.label + ", " + run.label : group.label,
          strong: !band, x: axisOf(run, at), y: smooth(numbers(series.y, Float32Array)) };
        if (series.low) { line.low = smooth(numbers(series.low, Float32Array)); line.high = smooth(numbers(series.high, Float32Array)); }
        found.push(line);
      });
    });
    return found;
  }

  function ticks(low, high, most, log) {
    if (log && high / low >= 10) {
      var powers = [];
      for (var p = Math.ceil(Math.log10(low) - 1e-9); p <= Math.log10(high) + 1e-9; p++) { powers.push(Math.pow(10, p)); }
      return powers.filter(function (_, i) { return i % Math.ceil(powers.length / most) === 0; });
    }
    if (!(high > low)) { return [low]; }
    var rough = (high - low) / most, power = Math.pow(10, Math.floor(Math.log10(rough))), step = 10 * power;
    [1, 2, 5].some(function (factor) { if (factor * power >= rough * 0.999) { step = factor * power; return true; } return false; });
    var found = [];
    for (var k = Math.ceil(low / step - 1e-9); k <= high / step + 1e-9; k++) { found.push(k * step); }
    return found;
  }
  function scale(low, high, start, end, log) {
    var at = log ? Math.log : function (v) { return v; }, a = at(low), b = at(high);
    var of = function (value) { return start + (b > a ? (at(value) - a) / (b - a) : 0.5) * (end - start); };
    of.back = function (point) { return low + (point - start) / (end - start) * (high - low); };
    of.low = low; of.high = high;
    return of;
  }
  function limits(lines, range, log) {
    var low = Infinity, high = -Infinity, values = [];
    lines.forEach(function (line) {
      for (var i = 0; i < line.x.length; i++) {
        var y = line.y[i];
        if (line.x[i] >= range[0] && line.x[i] <= range[1] && (!log || y > 0)) {
          if (y < low) { low = y; }
          if (y > high) { high = y; }
          if (i % 3 === 0) { values.push(y); }
        }
        if (line.strong && line.low && !log && line.x[i] >= range[0] && line.x[i] <= range[1]) {
          low = Math.min(low, line.low[i]); high = Math.max(high, line.high[i]);
        }
      }
    });
    if (low > high) { return log ? [0.1, 1] : [0, 1]; }
    if (!log && values.length > 60) {
      values.sort(function (a, b) { return a - b; });
      var inner = [values[Math.floor(values.length * 0.01)], values[Math.floor(values.length * 0.99)]], room = inner[1] - inner[0];
      if (room > 0 && inner[0] - low > 4 * room) { low = inner[0] - room; }
      if (room > 0 && high - inner[1] > 4 * room) { high = inner[1] + room; }
    }
    if (low === high) { var more = Math.abs(low) * 0.1 || 1; return log ? [low / 1.5, high * 1.5] : [low - more, high + more]; }
    return log ? [low, high] : [low - 0.03 * (high - low), high + 0.03 * (high - low)];
  }

  function kind(line) {
    if (line.kind) { return line.kind; }
    var group = line.group;
    return "s c" + group % COLOURS + (group >= COLOURS ? " d" + Math.floor(group / COLOURS) % 4 : "");
  }
  /* A figure that is saved leaves the page, so it takes its title and the names of its lines along. */
  function keys(lines, wide) {
    var found = element("g", {}), x = 56, y = 32;
    lines.forEach(function (line) {
      var words = line.kind ? line.title : data.groups[line.group].label, room = 34 + 6.5 * words.length;
      if (x > 56 && x + room > wide) { x = 56; y += 16; }
      var sample = element("g", { "class": kind(line) });
      sample.appendChild(element("path", { d: "M" + x + " " + (y - 4) + "h22", "class": "line" }));
      found.appendChild(sample);
      found.appendChild(element("text", { x: x + 27, y: y }, words));
      x += room + 10;
    });
    found.below = lines.length ? y + 12 : 26;
    return found;
  }
  function draw(figure) {
    figure.stale = false;
    var box = figure.box, wide = Math.max(Math.round(box.clientWidth), 280), high = figure.spec.big ? Math.min(380, Math.max(240, wide * 0.4)) : Math.max(190, Math.min(240, wide * 0.5));
    var frame = { left: 56, right: wide - 12, top: 12, bottom: high - 38 }, lines = linesOf(figure.spec), legend = null;
    if (figure.saving) {
      var shown = lines.filter(function (line, i) { return line.kind || lines.findIndex(function (other) { return other.group === line.group; }) === i; });
      var told = figure.spec.lines ? figure.spec.named : data.groups.length > 1 && shown.length <= 24;
      legend = keys(told ? shown : [], wide);
      frame.top = legend.below; frame.bottom += legend.below - 12; high += legend.below - 12;
    }
    var x0 = Infinity, x1 = -Infinity;
    lines.forEach(function (line) { if (line.x.length) { x0 = Math.min(x0, line.x[0]); x1 = Math.max(x1, line.x[line.x.length - 1]); } });
    if (x0 > x1) { x0 = 0; x1 = 1; }
    figure.whole = [Math.min(x0, x1 * 0.05), x1];
    var axis = axisOfFigure(figure.spec), range = shared.zooms[axis.name] || figure.whole, y = limits(lines, range, figure.log);
    var svg = element("svg", { viewBox: "0 0 " + wide + " " + high, width: wide, height: high, role: "img", xmlns: NS,
      "aria-label": figure.spec.title + ": " + figure.spec.metric + " over " + axis.label });
    var sx = figure.sx = scale(range[0], range[1], frame.left, frame.right), sy = figure.sy = scale(y[0], y[1], frame.bottom, frame.top, figure.log);
    figure.frame = frame; figure.lines = lines;
    if (legend) {
      svg.appendChild(element("text", { x: 56, y: 15, "class": "name" }, figure.spec.title + " (" + figure.spec.metric + ")"));
      svg.appendChild(legend);
    }
    var clip = "clip" + figure.number, inside = element("clipPath", { id: clip });
    inside.appendChild(element("rect", { x: frame.left, y: frame.top - 4, width: frame.right - frame.left, height: frame.bottom - frame.top + 8 }));
    svg.appendChild(inside);
    var grid = element("g", { "class": "grid" });
    ticks(range[0], range[1], wide < 420 ? 4 : 7).forEach(function (v) {
      grid.appendChild(element("line", { x1: sx(v), x2: sx(v), y1: frame.top, y2: frame.bottom }));
      var words = short(v), x = Math.min(sx(v), wide - 4 * words.length);  /* the last one must not leave the figure */
      grid.appendChild(element("text", { x: x, y: frame.bottom + 15, "text-anchor": "middle", "class": "tick" }, words));
    });
    ticks(y[0], y[1], 5, figure.log).forEach(function (v) {
      grid.appendChild(element("line", { x1: frame.left, x2: frame.right, y1: sy(v), y2: sy(v) }));
      grid.appendChild(element("text", { x: frame.left - 6, y: sy(v) + 4, "text-anchor": "end", "class": "tick" }, short(v)));
    });
    grid.appendChild(element("text", { x: (frame.left + frame.right) / 2, y: high - 5, "text-anchor": "middle", "class": "name" }, axis.label));
    svg.appendChild(grid);
    var marks = element("g", { "clip-path": "url(#" + clip + ")" });
    lines.forEach(function (line) {
      var g = element("g", { "class": kind(line) + (line.strong ? lines.length > 20 ? " thin" : "" : " faint") });
      if (line.t !== undefined) { g.setAttribute("data-t", line.t); g.appendChild(element("title", {}, line.title)); }
      if (line.low && (!figure.log)) { g.appendChild(element("path", { d: around(line, sx, sy), "class": "area" })); }
      g.appendChild(element("path", { d: path(line, sx, sy, figure.log), "class": "line" }));
      (line.rests || []).forEach(function (rest) { g.appendChild(element("path", { d: path(rest, sx, sy, figure.log), "class": "alone" })); });
      if (line.t !== undefined && lines.length <= 200) { g.appendChild(element("path", { d: path(line, sx, sy, figure.log), "class": "touch" })); }
      if (line.end && line.x.length) { g.appendChild(mark(line.end, sx(line.x[line.x.length - 1]), sy(line.y[line.x.length - 1]))); }
      if (line.x.length === 1) { g.appendChild(element("circle", { cx: sx(line.x[0]), cy: sy(line.y[0]), r: 3, "class": "point" })); }
      marks.appendChild(g);
    });
    svg.appendChild(marks);
    figure.cursor = element("g", { "class": "cursor" });
    svg.appendChild(figure.cursor);
    var old = box.querySelector("svg");
    if (old) { box.replaceChild(svg, old); } else { box.appendChild(svg); }
  }
  function mark(end, x, y) {
    if (end === "early") { return element("path", { d: "M" + x + " " + (y - 5) + "v10", "class": "end" }); }
    if (end === "failed") { return element("path", { d: "M" + (x - 4) + " " + (y - 4) + "l8 8m0 -8l-8 8", "class": "end" }); }
    return element("circle", { cx: x, cy: y, r: 2.5, "class": "dot" });
  }
  function path(line, sx, sy, log) {
    var parts = [], pen = "M";
    for (var i = 0; i < line.x.length; i++) {
      if (log && !(line.y[i] > 0)) { pen = "M"; continue; }
      parts.push(pen + sx(line.x[i]).toFixed(1) + " " + sy(line.y[i]).toFixed(1));
      pen = "L";
    }
    return parts.join("");
  }
  function around(line, sx, sy) {
    var parts = [], i;
    for (i = 0; i < line.x.length; i++) { parts.push((i ? "L" : "M") + sx(line.x[i]).toFixed(1) + " " + sy(line.high[i]).toFixed(1)); }
    for (i = line.x.length - 1; i >= 0; i--) { parts.push("L" + sx(line.x[i]).toFixed(1) + " " + sy(line.low[i]).toFixed(1)); }
    return parts.join("") + "Z";
  }

  function nearest(line, x) {
    var low = 0, high = line.x.length - 1;
    while (high - low > 1) { var middle = (low + high) >> 1; if (line.x[middle] < x) { low = middle; } else { high = middle; } }
    return high >= 0 && Math.abs(line.x[high] - x) < Math.abs(line.x[low] - x) ? high : low;
  }
  function point(figure, across, down) {
    var x = figure.sx.back(across), best = null;
    var found = figure.lines.filter(function (line) { return line.x.length; }).map(function (line) {
      var i = nearest(line, x);
      return { line: line, i: i, gap: down === null ? 0 : Math.abs(figure.sy(line.y[i]) - down) };
    });
    found.sort(function (a, b) { return a.gap - b.gap; });
    best = found[0];
    figure.cursor.textContent = "";
    if (!best) { return; }
    var at = figure.sx(best.line.x[best.i]);
    figure.cursor.appendChild(element("line", { x1: at, x2: at, y1: figure.frame.top, y2: figure.frame.bottom }));
    figure.cursor.appendChild(element("circle", { cx: at, cy: figure.sy(best.line.y[best.i]), r: 4 }));
    figure.at = at;
    figure.told.textContent = short(best.line.x[best.i]) + ": " + found.slice(0, 4).map(function (one) {
      var line = one.line, band = line.low ? " (" + digits(line.low[one.i]) + " to " + digits(line.high[one.i]) + ")" : "";
      return ((line.kind ? figure.lines.length : data.groups.length) > 1 || !line.strong ? line.title + " " : "") + digits(line.y[one.i]) + band;
    }).join(" · ");
  }
  function forget(figure) { if (figure.cursor) { figure.cursor.textContent = ""; } figure.told.textContent = figure.spec.note; }

  function zoom(range, figure) {
    if (range === null) { shared.zooms = {}; } else { shared.zooms[axisOfFigure(figure.spec).name] = range; }
    document.querySelectorAll("[data-do=reset]").forEach(function (button) { button.disabled = range === null; });
    redraw();
  }
  /* Never past all that there is. */
  function zoomWithin(low, high, figure) {
    low = Math.max(low, figure.whole[0]); high = Math.min(high, figure.whole[1]);
    if (low <= figure.whole[0] && high >= figure.whole[1]) { zoom(null); } else if (high > low) { zoom([low, high], figure); }
  }
  function zoomBy(figure, factor) {
    var low = figure.sx.low, high = figure.sx.high, middle = figure.sx.back(figure.at || (figure.frame.left + figure.frame.right) / 2);
    zoomWithin(middle - (middle - low) * factor, middle + (high - middle) * factor, figure);
  }
  function redraw() {
    figures.forEach(function (figure) { figure.stale = true; if (figure.seen) { draw(figure); forget(figure); } });
  }

  function listen(figure) {
    var box = figure.box, start = null, shade = null;
    function place(event) { var rect = box.getBoundingClientRect(); return [event.clientX - rect.left, event.clientY - rect.top]; }
    function inside(x) { return Math.max(figure.frame.left, Math.min(figure.frame.right, x)); }
    /* Two fingers: what was under each stays under it. */
    var fingers = {}, held = null;
    function pinch() {
      var at = Object.keys(fingers).map(function (id) { return fingers[id]; });
      if (at.length !== 2 || Math.abs(at[0] - at[1]) < 12) { return; }
      held = held || at.map(figure.sx.back);
      var slope = (held[1] - held[0]) / (at[1] - at[0]);
      if (slope > 0) { zoomWithin(held[0] - slope * (at[0] - figure.frame.left), held[0] + slope * (figure.frame.right - at[0]), figure); }
    }
    function lift(event) { delete fingers[event.pointerId]; held = null; }
    box.addEventListener("pointercancel", lift);
    box.addEventListener("pointerdown", function (event) {
      if (event.pointerType === "touch") {
        fingers[event.pointerId] = inside(place(event)[0]);
        held = null;
        box.setPointerCapture(event.pointerId);
        pinch();
        return;
      }
      if (event.button !== 0) { return; }
      start = inside(place(event)[0]);
      box.setPointerCapture(event.pointerId);
    });
    box.addEventListener("pointermove", function (event) {
      var at = place(event);
      if (event.pointerId in fingers) {
        fingers[event.pointerId] = inside(at[0]);
        if (Object.keys(fingers).length > 1) { pinch(); return; }
      }
      if (start !== null && Math.abs(at[0] - start) > 4) {
        if (!shade) { shade = element("rect", { y: figure.frame.top, height: figure.frame.bottom - figure.frame.top, "class": "shade" }); box.querySelector("svg").appendChild(shade); }
        var to = inside(at[0]);
        shade.setAttribute("x", Math.min(start, to)); shade.setAttribute("width", Math.abs(to - start));
      } else { point(figure, inside(at[0]), at[1]); }
    });
    box.addEventListener("pointerup", function (event) {
      lift(event);
      var to = inside(place(event)[0]);
      if (shade) { shade.remove(); shade = null; zoom([figure.sx.back(Math.min(start, to)), figure.sx.back(Math.max(start, to))], figure); }
      start = null;
    });
    box.addEventListener("pointerleave", function () { if (start === null) { forget(figure); } });
    box.addEventListener("dblclick", function () { zoom(null); });
    box.addEventListener("keydown", function (event) {
      var step = (figure.frame.right - figure.frame.left) / 60, at = figure.at || (figure.frame.left + figure.frame.right) / 2;
      var keys = {
        ArrowLeft: function () { point(figure, Math.max(figure.frame.left, at - step), null); },
        ArrowRight: function () { point(figure, Math.min(figure.frame.right, at + step), null); },
        "+": function () { zoomBy(figure, 0.5); }, "-": function () { zoomBy(figure, 2); },
        "0": function () { zoom(null); }, l: function () { figure.log = !figure.log; draw(figure); press(figure); }
      };
      if (keys[event.key] && !event.ctrlKey && !event.metaKey) { keys[event.key](); event.preventDefault(); }
    });
  }
  function press(figure) { figure.element.querySelector("[data-do=log]").setAttribute("aria-pressed", String(figure.log)); }

  /* A number of 32 bits as short as it can be said: 0.1, and not 0.10000000149011612. */
  function single(value) {
    for (var count = 6; count < 9; count++) { if (Math.fround(+value.toPrecision(count)) === value) { break; } }
    return +value.toPrecision(count);
  }
  function csv(figure) {
    var rows = [["group", "run", axisOfFigure(figure.spec).name, figure.spec.metric, "low", "high"]], before = shared.runs, smoothing = shared.smooth;
    shared.runs = true; shared.smooth = 1;
    linesOf(figure.spec).forEach(function (line) {
      var label = line.kind ? line.title : data.groups[line.group].label, run = line.kind ? "" : line.title === label ? (data.groups[line.group].runs.length > 1 ? "all" : "") : line.title.slice(label.length + 2);
      for (var i = 0; i < line.x.length; i++) {
        rows.push([label, run, line.x[i], single(line.y[i]), line.low ? single(line.low[i]) : "", line.high ? single(line.high[i]) : ""]);
      }
    });
    shared.runs = before; shared.smooth = smoothing;
    return window.shoal.csvText(rows);
  }

  document.querySelectorAll("figure[data-figure]").forEach(function (home) {
    var number = Number(home.getAttribute("data-figure")), spec = data.figures[number];
    var figure = { number: number, spec: spec, element: home, box: home.querySelector(".box"), told: home.querySelector(".told"), log: false, seen: false, stale: true };
    figures.push(figure);
    forget(figure);
    home.addEventListener("click", function (event) {
      var button = event.target.closest("button[data-do]"), what = button && button.getAttribute("data-do");
      if (what === "log") { figure.log = !figure.log; draw(figure); press(figure); }
      if (what === "svg") {
        figure.saving = true; draw(figure);
        window.shoal.saveSvg(figure.box.querySelector("svg"), spec.file);
        figure.saving = false; draw(figure);
      }
      if (what === "csv") { window.shoal.save(csv(figure), "text/csv", spec.file + ".csv"); }
    });
    listen(figure);
  });

  /* Only what can be seen is drawn; all of it before the page is printed. */
  function look(figure) { figure.seen = true; if (figure.stale) { draw(figure); } }
  if (window.IntersectionObserver) {
    var watcher = new IntersectionObserver(function (entries) {
      entries.forEach(function (entry) {
        var figure = figures.find(function (one) { return one.element === entry.target; });
        figure.seen = entry.isIntersecting;
        if (figure.seen) { look(figure); }
      });
    }, { rootMargin: "200px" });
    figures.forEach(function (figure) { watcher.observe(figure.element); });
  } else { figures.forEach(look); }
  window.addEventListener("beforeprint", function () { figures.forEach(function (figure) { if (figure.stale) { draw(figure); } }); });
  var late = null;
  window.addEventListener("resize", function () { clearTimeout(late); late = setTimeout(redraw, 100); });

  document.querySelectorAll("[data-group]").forEach(function (button) {
    button.addEventListener("click", function (event) {
      var own = button.getAttribute("data-group"), buttons = Array.from(document.querySelectorAll("[data-group]"));
      if (event.shiftKey || event.altKey) {
        var alone = buttons.every(function (other) { return other === button || shared.hidden[other.getAttribute("data-group")]; });
        buttons.forEach(function (other) { shared.hidden[other.getAttribute("data-group")] = !alone && other !== button; });
      } else { shared.hidden[own] = !shared.hidden[own]; }
      buttons.forEach(function (other) { other.setAttribute("aria-pressed", String(!shared.hidden[other.getAttribute("data-group")])); });
      redraw();
    });
  });
  /* New numbers for the same figures; zoom, smoothing and what is hidden stay as they are. */
  window.shoal.update = function (fresh) {
    data = fresh;
    figures.forEach(function (figure) {
      var spec = fresh.figures.find(function (one) { return one.metric === figure.spec.metric; });
      figure.spec = spec || { title: figure.spec.title, metric: figure.spec.metric, file: figure.spec.file, note: figure.spec.note, big: figure.spec.big, groups: [] };
    });
    redraw();
  };
  var bar = document.getElementById("controls");
  if (bar) {
    bar.hidden = false;
    bar.addEventListener("input", function (event) {
      var name = event.target.name;
      if (name === "axis") { shared.axis = Number(event.target.value); zoom(null); }
      if (name === "smooth") { shared.smooth = Number(event.target.value); bar.querySelector("output").textContent = shared.smooth; redraw(); }
      if (name === "runs") { shared.runs = event.target.checked; redraw(); }
    });
    bar.addEventListener("click", function (event) { if (event.target.closest("[data-do=reset]")) { zoom(null); } });
    var box = bar.querySelector("[name=runs]");
    if (box) { box.checked = shared.runs; }
  }
})();
