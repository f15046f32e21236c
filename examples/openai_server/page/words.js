// Figures as a person reads them: the same words as those of `python -m boundedgen top`.

export const UNKNOWN = '–';

/** A duration, in at most 6 characters: 0.04s 5.3s 59s 12m05 3h07 41d. */
export function span(seconds) {
  if (seconds === null || seconds === undefined) return UNKNOWN;
  if (seconds < 0) return seconds > -99.5 ? `-${span(-seconds)}` : '-99s+';
  if (seconds < 0.0995) return `${seconds.toFixed(2)}s`;
  if (seconds < 9.95) return `${seconds.toFixed(1)}s`;
  if (seconds < 119.5) return `${seconds.toFixed(0)}s`;
  const whole = Math.round(seconds);
  const minutes = Math.floor(whole / 60);
  if (minutes < 60) return `${minutes}m${String(whole % 60).padStart(2, '0')}`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours}h${String(minutes % 60).padStart(2, '0')}`;
  const days = Math.floor(hours / 24);
  return days < 10000 ? `${days}d` : 'ages';
}

/** Those that are not 0, the largest first, as pairs. */
export function counted(figures) {
  return Object.entries(figures ?? {}).filter(([, figure]) => figure > 0).sort((one, other) => other[1] - one[1]);
}

export function listed(figures) {
  return counted(figures).map(([name, figure]) => `${figure} ${name}`).join(', ');
}

export function rate(figure) {
  if (figure === null || figure === undefined) return UNKNOWN;
  return Math.abs(figure) < 99.95 ? figure.toFixed(1) : Math.round(figure).toLocaleString('en-US');
}

export function percent(share) {
  return share === null || share === undefined ? UNKNOWN : `${(100 * share).toFixed(0)}%`;
}

/** Bytes. */
export function size(bytes) {
  if (bytes === null || bytes === undefined) return UNKNOWN;
  let left = bytes;
  for (const unit of ['B', 'kB', 'MB', 'GB']) {
    if (Math.abs(left) < 999.5) return `${Number(left.toPrecision(3))} ${unit}`;
    left /= 1000;
  }
  return `${Number(left.toPrecision(3)).toLocaleString('en-US')} TB`;
}

/** What clients have written, with what cannot be seen as escapes: no text looks like another one. */
export function visible(text) {
  return text.replace(/[\p{C}\p{Z}]/gu, (c) => (c === ' ' ? c : `\\u{${c.codePointAt(0).toString(16)}}`));
}
