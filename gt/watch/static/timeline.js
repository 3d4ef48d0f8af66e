// A timeline on a canvas: lanes, bars, arrows. Wheel zooms, dragging moves, hovering tells. No libraries, no build.
function timeline(canvas, tip) {
  const left = 150, top = 26, lane = 40, bar = 24;
  let data = {lanes: [], bars: [], arrows: [], colours: {}, seconds: 1}, from = 0, to = 1, filter = "", drag = null, fixed = false;
  const g = canvas.getContext("2d");
  const x = t => left + (t - from) / (to - from) * (canvas.clientWidth - left - 10);
  const time = px => from + (px - left) / (canvas.clientWidth - left - 10) * (to - from);
  const hit = b => !filter || (b[3] + " " + b[4] + " " + b[5] + " " + b[6]).toLowerCase().includes(filter);
  function label(s) { return s >= 1 ? s.toFixed(3) + " s" : s >= 1e-3 ? (s * 1e3).toFixed(3) + " ms" : (s * 1e6).toFixed(1) + " us"; }
  function draw() {
    const w = canvas.clientWidth, h = top + lane * Math.max(1, data.lanes.length) + 8, r = window.devicePixelRatio || 1;
    canvas.style.height = h + "px"; canvas.width = w * r; canvas.height = h * r; g.setTransform(r, 0, 0, r, 0, 0);
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    g.font = "12px system-ui, sans-serif"; g.textBaseline = "middle";
    data.lanes.forEach((name, i) => {
      g.fillStyle = dark ? "#ffffff10" : "#0000000a"; g.fillRect(left, top + i * lane + 4, w - left - 10, lane - 8);
      g.fillStyle = dark ? "#ddd" : "#333"; g.fillText(name.length > 22 ? name.slice(0, 21) + "…" : name, 6, top + i * lane + lane / 2);
    });
    let step = 1e-6; while ((to - from) / step > 8) step *= String(step.toExponential()).startsWith("2") ? 2.5 : 2;
    for (let t = Math.ceil(from / step) * step; t <= to; t += step) {
      g.fillStyle = dark ? "#ffffff22" : "#00000018"; g.fillRect(x(t), top, 1, h - top);
      g.fillStyle = "#888"; g.fillText(label(t), x(t) + 3, 12);
    }
    g.save(); g.beginPath(); g.rect(left, 0, w - left - 10, h); g.clip();
    for (const b of data.bars) {
      if (b[2] < from || b[1] > to) continue;
      const thin = b[4] == "collective" || b[4] == "wait" || b[4] == "batch", y = top + b[0] * lane + (lane - (thin ? bar / 2 : bar)) / 2;
      g.globalAlpha = hit(b) ? 1 : 0.15; g.fillStyle = data.colours[b[4]] || "#888";
      const wide = Math.max(1, x(b[2]) - x(b[1])); g.fillRect(x(b[1]), y, wide, thin ? bar / 2 : bar);
      if (wide > 7 * b[3].length + 6 && !thin) { g.fillStyle = "#fff"; g.fillText(b[3], x(b[1]) + 4, y + bar / 2); }
    }
    g.globalAlpha = 0.5; let shown = 0;
    for (const a of data.arrows) {
      if (a[3] < from || a[1] > to || ++shown > 1500) continue;
      const y0 = top + a[0] * lane + lane / 2, y1 = top + a[2] * lane + lane / 2;
      g.strokeStyle = a[4] == "collective" ? "#ff725c" : dark ? "#aaa" : "#555"; g.beginPath(); g.moveTo(x(a[1]), y0); g.lineTo(x(a[3]), y1);
      const s = Math.sign(y1 - y0) || 1; g.moveTo(x(a[3]) - 3, y1 - 5 * s); g.lineTo(x(a[3]), y1); g.lineTo(x(a[3]) + 3, y1 - 5 * s); g.stroke();
    }
    g.restore(); g.globalAlpha = 1;
  }
  function find(ev) {
    const box = canvas.getBoundingClientRect(), px = ev.clientX - box.left, i = Math.floor((ev.clientY - box.top - top) / lane);
    const t = time(px), slack = 2 * (to - from) / canvas.clientWidth; let best = null;
    for (const b of data.bars) if (b[0] == i && b[1] - slack <= t && t <= b[2] + slack && (!best || b[2] - b[1] <= best[2] - best[1])) best = b;
    return best;
  }
  canvas.addEventListener("wheel", ev => {
    ev.preventDefault(); fixed = true; const at = time(ev.clientX - canvas.getBoundingClientRect().left), f = ev.deltaY > 0 ? 1.25 : 0.8;
    from = at - (at - from) * f; to = at + (to - at) * f; draw();
  }, {passive: false});
  canvas.addEventListener("mousedown", ev => { drag = [ev.clientX, from, to]; });
  window.addEventListener("mouseup", () => { drag = null; });
  canvas.addEventListener("dblclick", () => { fixed = false; from = 0; to = data.seconds || 1; draw(); });
  canvas.addEventListener("mousemove", ev => {
    if (drag) {
      const d = (ev.clientX - drag[0]) / (canvas.clientWidth - left - 10) * (drag[2] - drag[1]);
      fixed = true; from = drag[1] - d; to = drag[2] - d; draw(); return;
    }
    const b = find(ev); tip.hidden = !b;
    if (b) {
      tip.textContent = b[3] + "\n" + b[4] + ", " + label(b[2] - b[1]) + " from " + label(b[1]) + (b[5] ? "\n" + b[5] : "") +
        (b[6] ? "\n" + b[6] : "") + (b[7] ? "\n" + b[7].toLocaleString() + " bytes" : "");
      tip.style.left = Math.min(ev.clientX + 12, innerWidth - 260) + "px"; tip.style.top = ev.clientY + 14 + "px";
    }
  });
  canvas.addEventListener("mouseleave", () => { tip.hidden = true; });
  window.addEventListener("resize", draw);
  return {
    show(next, window_) { data = next; if (!fixed) { to = next.seconds || 1; from = window_ ? Math.max(0, to - window_) : 0; } draw(); },
    search(text) { filter = text.toLowerCase(); draw(); return data.bars.filter(hit).length; },
    bars() { return data.bars; },
  };
}
