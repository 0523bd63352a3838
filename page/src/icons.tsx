// Icons of the page, drawn on a grid of 20.

import type { ComponentChildren } from "preact";

function Icon({ children }: { children: ComponentChildren }) {
  return (
    <svg class="icon" viewBox="0 0 20 20" aria-hidden="true" focusable="false">
      {children}
    </svg>
  );
}

const icon = (...paths: string[]) => () => (
  <Icon>
    {paths.map((path) => (
      <path key={path} d={path} />
    ))}
  </Icon>
);

export const ChatIcon = icon("M3.5 5.5a2 2 0 0 1 2-2h9a2 2 0 0 1 2 2v6a2 2 0 0 1-2 2H9l-4 3v-3.1a2 2 0 0 1-1.5-1.9z");
export const ModelsIcon = icon("M10 2.8 16.5 6.4v7.2L10 17.2l-6.5-3.6V6.4z", "M3.5 6.4 10 10l6.5-3.6", "M10 10v7.2");
export const ProofIcon = icon("M3 5h9", "M15 5h2", "M3 10h5", "M11 10h6", "M3 15h12");
export const SystemIcon = icon("M3 14.5 7 9l3 3.5 3.5-7 3.5 5");
export const BenchmarksIcon = icon("M3.5 16.5h13", "M5.5 16.5v-5", "M10 16.5V4", "M14.5 16.5V8.5");
export const Send = icon("M10 16V4.5", "M5 9l5-5 5 5");
export const Stop = icon("M6 6h8v8H6z");
export const Copy = icon("M7.5 7.5h8v8h-8z", "M5 12.5h-.5v-8h8V5");
export const Check = icon("M4.5 10.5 8 14l7.5-8");
export const Edit = icon("M4 16l.7-3.2L13 4.5l2.5 2.5-8.3 8.3z");
export const Retry = icon("M15.5 8A6 6 0 1 0 16 11", "M16 4v4h-4");
export const Plus = icon("M10 4v12", "M4 10h12");
export const Trash = icon("M4 6h12", "M8 6V4h4v2", "M5.5 6l.8 10h7.4l.8-10");
export const Settings = icon("M3 6h8", "M15 6h2", "M13 4v4", "M3 14h2", "M9 14h8", "M7 12v4");
export const Left = icon("M12 5l-5 5 5 5");
export const Right = icon("M8 5l5 5-5 5");
export const Menu = icon("M3.5 6h13", "M3.5 10h13", "M3.5 14h13");
export const Close = icon("M5 5l10 10", "M15 5 5 15");
export const KeyIcon = icon("M12.5 11.5a4 4 0 1 0-3.6-2.3L3.5 14.6V17h3v-2h2v-2l1.3-1.3", "M13.5 7.2v.1");
export const Speaker = icon("M4 8v4h2.5L10 15V5L6.5 8z", "M12.8 7.5a3.5 3.5 0 0 1 0 5", "M14.8 5.5a6.4 6.4 0 0 1 0 9");
export const Paperclip = icon("M14.8 9.2 9.3 14.7a3.2 3.2 0 0 1-4.5-4.5l6.2-6.2a2.1 2.1 0 0 1 3 3l-6.1 6.1a1.05 1.05 0 0 1-1.5-1.5l5.4-5.4");
export const Microphone = icon("M10 3a2.3 2.3 0 0 0-2.3 2.3v4.2a2.3 2.3 0 0 0 4.6 0V5.3A2.3 2.3 0 0 0 10 3z", "M5 9.5a5 5 0 0 0 10 0", "M10 14.5V17");
export const Download = icon("M10 3.5V13", "M5.5 9 10 13.5 14.5 9", "M4 16.5h12");
export const Upload = icon("M10 13.5V4", "M5.5 8.5 10 4l4.5 4.5", "M4 16.5h12");

/** The mark of Narthex: the arches of an entrance hall. */
export function Mark() {
  return (
    <svg class="mark" viewBox="0 0 32 32" aria-hidden="true" focusable="false">
      <path d="M5.5 27V15.5a10.5 10.5 0 0 1 21 0V27" />
      <path d="M10.8 27V15.8a5.2 5.2 0 0 1 10.4 0V27" />
      <path d="M16 27V16.5" />
    </svg>
  );
}
