import { useState } from "preact/hooks";

/** Width and height of a plot in its own units; the page stretches it. */
const WIDTH = 600;
const HEIGHT = 120;

/** Seconds that a plot of time shows. */
const HOUR = 3600;

/** Returns an SVG path through values, of which each has a place between 0 and 1. */
function path(places: number[], values: number[], top: number, width: number, height: number): string {
  const points = values.map((value, index) => {
    const x = places[index]! * width;
    const y = height - 1 - (value / top) * (height - 4);
    return `${index ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
  });
  return points.join("");
}

/** The course of a value without axes: its form is the message. */
export function Sparkline({ values }: { values: number[] }) {
  const [width, height] = [240, 40];
  const places = values.map((_, index) => (values.length < 2 ? 1 : index / (values.length - 1)));
  const line = path(places, values, Math.max(...values, Number.MIN_VALUE), width, height);
  return (
    <svg class="spark" viewBox={`0 0 ${width} ${height}`} preserveAspectRatio="none" aria-hidden="true">
      {values.length > 1 && <path class="area" d={`${line}L${width} ${height}L0 ${height}Z`} />}
      {values.length > 1 && <path class="line" d={line} />}
    </svg>
  );
}

interface PlotProps {
  title: string;
  /** Seconds since 1970, in order. */
  times: number[];
  lines: { name: string; values: number[] }[];
  format: (value: number) => string;
  /** Least value at the top. */
  least?: number;
}

/** Lines over the last hour. The pointer shows the values of a time; screen readers get the newest and the highest ones. */
export function Plot({ title, times, lines, format, least = 0 }: PlotProps) {
  const [at, setAt] = useState<number | null>(null);
  const end = times.at(-1)!;
  const places = times.map((time) => Math.max(0, 1 - (end - time) / HOUR));
  const top = Math.max(least, ...lines.flatMap((line) => line.values)) || 1;
  const last = times.length - 1;
  const shown = Math.min(at ?? last, last);
  const spoken = lines.map(({ name, values }) => `${name}: now ${format(values[last]!)}, at most ${format(Math.max(...values))}`);
  const nearest = (event: PointerEvent) => {
    const box = (event.currentTarget as Element).getBoundingClientRect();
    const place = (event.clientX - box.left) / box.width;
    const distances = places.map((other) => Math.abs(other - place));
    setAt(distances.indexOf(Math.min(...distances)));
  };
  return (
    <figure class="plot">
      <figcaption>
        <h3>{title}</h3>
        <ul class="plot-legend">
          {lines.map(({ name, values }, index) => (
            <li key={name}>
              <i data-line={index} />
              {name} <b>{format(values[shown]!)}</b>
            </li>
          ))}
        </ul>
      </figcaption>
      <div class="plot-area" onPointerMove={nearest} onPointerLeave={() => setAt(null)}>
        <span class="plot-top" aria-hidden="true">
          {format(top)}
        </span>
        <svg
          viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
          preserveAspectRatio="none"
          role="img"
          aria-label={`${title} over the last hour; ${spoken.join("; ")}`}
        >
          {lines.map(({ name, values }, index) => (
            <path key={name} class="line" data-line={index} d={path(places, values, top, WIDTH, HEIGHT)} />
          ))}
          {at !== null && (
            <path class="cursor" d={`M${(places[shown]! * WIDTH).toFixed(1)} 0V${HEIGHT}`} />
          )}
        </svg>
      </div>
      <p class="plot-times" aria-hidden="true">
        <span>an hour ago</span>
        <span>{at === null ? "" : new Date(times[shown]! * 1000).toLocaleTimeString()}</span>
        <span>now</span>
      </p>
    </figure>
  );
}
