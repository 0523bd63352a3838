// Markdown as elements. No text of a model becomes HTML: the lexer's tokens become elements one by one, HTML in the text
// is shown as text, links lead only to the web, and pictures are links, because the page loads nothing from other hosts.

import { type MarkedToken, Lexer, type Token, type Tokens } from "marked";
import { Component, type ComponentChildren } from "preact";
import { useMemo, useRef, useState } from "preact/hooks";
import { Check, Copy } from "./icons";

/** Lexes a text that grows. Blocks that cannot change any more are kept. */
class GrowingLexer {
  private text = "";
  private blocks: Token[] = [];

  lex(text: string): Token[] {
    let start = 0;
    const kept: Token[] = [];
    if (text.startsWith(this.text)) {
      // The last two blocks can still change: a paragraph may become a list or a table.
      for (const block of this.blocks.slice(0, -2)) {
        kept.push(block);
        start += block.raw.length;
      }
    }
    const lexed = new Lexer({ gfm: true }).lex(text.slice(start));
    this.blocks = [...kept, ...lexed];
    // The lexer changes line ends and tabs; without equal lengths, the next text is lexed as a whole.
    const length = this.blocks.reduce((sum, block) => sum + block.raw.length, 0);
    this.text = length === text.length ? text : "\0";
    return this.blocks;
  }
}

/** Shows a text in Markdown. */
export function Markdown({ text }: { text: string }) {
  const lexer = useRef<GrowingLexer>(null);
  lexer.current ??= new GrowingLexer();
  const blocks = useMemo(() => lexer.current!.lex(text), [text]);
  return (
    <div class="markdown">
      {blocks.map((block, index) => (
        <Block key={index} token={block} />
      ))}
    </div>
  );
}

/** A block, which is drawn again only if its text changes. */
class Block extends Component<{ token: Token }> {
  shouldComponentUpdate(next: { token: Token }) {
    return next.token.raw !== this.props.token.raw;
  }

  render() {
    return block(this.props.token as MarkedToken);
  }
}

function block(token: MarkedToken): ComponentChildren {
  switch (token.type) {
    case "space":
    case "def":
      return null;
    case "heading": {
      // The headings of an answer stand below those of the page.
      const Heading = `h${Math.min(6, token.depth + 2)}` as "h3";
      return <Heading>{inline(token.tokens)}</Heading>;
    }
    case "paragraph":
      return <p>{inline(token.tokens)}</p>;
    case "text":
      return token.tokens ? inline(token.tokens) : token.text;
    case "code":
      return <Code text={token.text} language={token.lang ?? ""} />;
    case "blockquote":
      return <blockquote>{token.tokens.map((part) => block(part as MarkedToken))}</blockquote>;
    case "hr":
      return <hr />;
    case "list":
      return list(token);
    case "table":
      return table(token);
    case "html":
      return <p>{token.text}</p>;
    default:
      return token.raw;
  }
}

function list(token: Tokens.List) {
  const items = token.items.map((item, index) => (
    <li key={index} class={item.task ? "task" : undefined}>
      {item.task && <input type="checkbox" checked={item.checked} disabled aria-label="Task" />}
      {item.tokens.map((part) => (part.type === "checkbox" ? null : block(part as MarkedToken)))}
    </li>
  ));
  return token.ordered ? <ol start={token.start || 1}>{items}</ol> : <ul>{items}</ul>;
}

function table(token: Tokens.Table) {
  const side = (index: number) => token.align[index] ?? undefined;
  return (
    <div class="scroller" tabIndex={0} role="region" aria-label="Table">
      <table>
        <thead>
          <tr>
            {token.header.map((cell, index) => (
              <th key={index} scope="col" data-align={side(index)}>
                {inline(cell.tokens)}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {token.rows.map((row, at) => (
            <tr key={at}>
              {row.map((cell, index) => (
                <td key={index} data-align={side(index)}>
                  {inline(cell.tokens)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

const ENTITIES: Record<string, string> = { amp: "&", lt: "<", gt: ">", quot: '"', "#39": "'", nbsp: "\u00a0" };

/** Replaces the common entities of HTML. */
function unescape(text: string): string {
  return text.replace(/&(amp|lt|gt|quot|#39|nbsp);/g, (_, name: string) => ENTITIES[name]!);
}

/** Returns an address if a link may lead there. */
export function safeAddress(address: string): string | undefined {
  return /^(https?:\/\/|mailto:)/i.test(address) ? address : undefined;
}

function link(address: string, content: ComponentChildren) {
  const href = safeAddress(address);
  return href ? (
    <a href={href} target="_blank" rel="noopener noreferrer">
      {content}
    </a>
  ) : (
    <span>{content}</span>
  );
}

function inline(tokens: Token[]): ComponentChildren[] {
  return tokens.map((part) => {
    const token = part as MarkedToken;
    switch (token.type) {
      case "strong":
        return <strong>{inline(token.tokens)}</strong>;
      case "em":
        return <em>{inline(token.tokens)}</em>;
      case "del":
        return <del>{inline(token.tokens)}</del>;
      case "codespan":
        return <code>{token.text}</code>;
      case "br":
        return <br />;
      case "link":
        return link(token.href, inline(token.tokens));
      case "image":
        return link(token.href, `Picture: ${token.text || token.href}`);
      case "escape":
        return unescape(token.text);
      case "text":
        return token.tokens ? inline(token.tokens) : unescape(token.text);
      default:
        return token.raw;
    }
  });
}

function Code({ text, language }: { text: string; language: string }) {
  const name = language.split(/\s/)[0] ?? "";
  return (
    <figure class="code">
      <figcaption>
        <span>{name || "text"}</span>
        <CopyButton text={text} label="Copy code" />
      </figcaption>
      <pre tabIndex={0}>
        <code>{text}</code>
      </pre>
    </figure>
  );
}

/** A button that copies a text. */
export function CopyButton({ text, label }: { text: string; label: string }) {
  const [done, setDone] = useState(false);
  const copy = async () => {
    await copyText(text);
    setDone(true);
    setTimeout(() => setDone(false), 1500);
  };
  return (
    <button type="button" class="icon-button" aria-label={done ? "Copied" : label} title={label} onClick={copy}>
      {done ? <Check /> : <Copy />}
    </button>
  );
}

/** Copies a text, also where the browser offers no clipboard because the page is not encrypted. */
async function copyText(text: string): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}
