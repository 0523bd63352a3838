import type { ComponentChildren } from "preact";

/** A column of a table. Numbers are aligned on the right. */
export interface Column {
  title: string;
  align?: "right";
}

/** A table that scrolls sideways, by keyboard too, where it is wider than its place. */
export function Table({ label, columns, children }: { label: string; columns: Column[]; children: ComponentChildren }) {
  return (
    <div class="scroller" tabIndex={0} role="region" aria-label={label}>
      <table>
        <thead>
          <tr>
            {columns.map(({ title, align }) => (
              <th key={title} scope="col" data-align={align}>
                {title}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>{children}</tbody>
      </table>
    </div>
  );
}
