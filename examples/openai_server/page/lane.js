// One lane: the document of `pipeline.stats_document()`, with what is wrong, drawn.

import { bar, copy, keyed, mark, part, say, squares } from './drawing.js';
import { counted, listed, percent, rate, size, span, UNKNOWN, visible } from './words.js';

const BAD_ENDS = new Set(['deadline', 'engine_lost', 'quarantined', 'engine_failed', 'cache_exhausted', 'internal']);
const SOON = 5; // seconds left of a sequence that are shown as few
const QUIET = 2; // seconds without progress that are worth a look
const COLUMNS = 32;

/** `allowed`: the buttons that there are. */
export function drawLane(root, lane, allowed) {
  const { stats, health } = lane;
  head(root, lane);
  wrong(root, lane);
  step(root, stats);
  slots(root, stats);
  queue(root, lane);
  keyed(part(root, 'pools'), stats.pools, (pool) => pool.name, () => copy('pool'), (item, pool) => {
    drawPool(item, pool, pool.name === 'kv' ? stats.blocks_used : null);
  });
  say(part(root, 'no-pools'), stats.pools.length ? '' : 'not known before the engine is ready');
  tokens(root, stats);
  endings(root, lane);
  engines(root, lane, allowed.has('kill'));
  sequences(root, lane, allowed);
  mark(root, 'data-state', health.state);
  mark(root, 'aria-label', `lane ${visible(lane.name)}`);
  root.toggleAttribute('data-troubled', lane.troubles.length > 0);
}

function head(root, lane) {
  const { health, stats } = lane;
  say(part(root, 'name'), visible(lane.name));
  say(part(root, 'state'), health.state.toUpperCase());
  const told = [
    `for ${span(health.since_s)}`,
    `engine ${health.incarnation}`,
    stats.engine_pid === null ? 'no process' : `pid ${stats.engine_pid}`,
  ];
  say(part(root, 'facts'), told.join(' · '));
}

function wrong(root, lane) {
  const found = lane.troubles.map((trouble) => ({ ...trouble, grade: trouble.grave ? 'grave' : 'minor' }));
  if (!found.length && lane.health.ready) {
    found.push({ grade: 'fine', words: 'nothing is wrong that can be seen from here' });
  }
  for (const finding of lane.health.findings) found.push({ grade: 'aside', words: `found: ${finding}` });
  keyed(part(root, 'troubles'), found.map((one, index) => [index, one]), ([index]) => index, () => copy('trouble'),
    (item, [, trouble]) => {
      mark(item, 'data-grade', trouble.grade);
      say(part(item, 'mark'), { grave: 'wrong:', minor: 'look:' }[trouble.grade] ?? '');
      say(part(item, 'words'), trouble.words);
    });
}

function step(root, stats) {
  const age = stats.step_current_s ?? 0;
  const budget = stats.step_budget_s;
  const share = budget ? age / budget : 0;
  const grade = share > 1 ? 'grave' : share > 0.5 ? 'minor' : 'fine';
  say(part(root, 'step'), budget === null ? 'no step' : `${span(age)} of ${span(budget)}`);
  bar(part(root, 'step-bar'), share, grade);
  const progress = stats.last_progress_s;
  const moved = progress === null ? 'no work' : `progress ${span(progress)} ago`;
  mark(part(root, 'step-more'), 'data-grade', progress > QUIET ? 'minor' : 'aside');
  say(part(root, 'step-more'), `last ${span(stats.last_step_s)} · ${moved}`);
}

function slots(root, stats) {
  const most = stats.running_max;
  const held = stats.running + stats.stopping;
  say(part(root, 'slots'), most === null ? `${held}` : `${held} of ${most}`);
  const kinds = [['running', stats.running], ['stopping', stats.stopping]];
  squares(part(root, 'slots-picture'), Math.max(most ?? 0, held), kinds, Math.min(16, Math.max(8, most ?? 8)));
  const stopping = stats.oldest_stopping_s === null ? '' : `, for ${span(stats.oldest_stopping_s)}`;
  say(part(root, 'slots-more'), `${stats.running} running · ${stats.stopping} stopping${stopping}`);
}

function queue(root, lane) {
  const { stats } = lane;
  const oldest = stats.oldest_waiting_s;
  const element = part(root, 'waiting');
  say(element, `${stats.waiting} waiting`);
  mark(element, 'data-grade', oldest > SOON ? 'minor' : 'fine');
  say(part(root, 'waiting-more'), oldest === null ? 'nobody waits' : `the oldest waits for ${span(oldest)}`);
  const refused = listed(stats.rejected_total);
  say(part(root, 'refused'), refused ? `refused since start: ${refused}` : '');
}

function drawPool(item, pool, used) {
  const total = pool.blocks_total;
  const held = Math.max(pool.blocks_reserved, used ?? 0);
  const kinds = [['used', used ?? 0], ['reserved', held - (used ?? 0)]];
  const each = squares(part(item, 'picture'), total, kinds, Math.min(COLUMNS, Math.max(12, total)));
  say(part(item, 'name'), pool.name);
  say(part(item, 'full'), percent(total ? pool.blocks_reserved / total : null));
  mark(part(item, 'full'), 'data-grade', pool.blocks_reserved > 0.9 * total ? 'minor' : 'fine');
  say(part(item, 'used'), used === null ? UNKNOWN : `${used}`);
  say(part(item, 'reserved'), `${pool.blocks_reserved}`);
  say(part(item, 'free'), `${pool.blocks_free}`);
  say(part(item, 'total'), `${total}`);
  say(part(item, 'each'), each > 1 ? `a square is ${each} blocks` : '');
}

function tokens(root, stats) {
  say(part(root, 'tokens'), `${rate(stats.tokens_per_s)}/s`);
  const late = stats.driver_lag_s > 0.1 ? ` · driver ${span(stats.driver_lag_s)} late` : '';
  const used = `cache ${percent(stats.cache_usage)} used, ${percent(stats.cache_usage_max)} at most`;
  say(part(root, 'tokens-more'), used + late);
}

function endings(root, lane) {
  const lately = lane.lately.finished_total;
  const ends = Object.entries(lane.stats.finished_total).filter(([, figure]) => figure > 0);
  say(part(root, 'lately'), lane.lately_s ? `last ${span(lane.lately_s)}` : 'lately');
  keyed(part(root, 'endings'), ends, ([reason]) => reason, () => copy('ending'), (row, [reason, figure]) => {
    const recent = lately[reason] ?? 0;
    say(part(row, 'reason'), reason);
    say(part(row, 'recent'), `${recent}`);
    say(part(row, 'since'), `${figure}`);
    mark(row, 'data-grade', recent && BAD_ENDS.has(reason) ? 'minor' : 'fine');
  });
  say(part(root, 'no-endings'), ends.length ? '' : 'none since start');
  part(root, 'endings-table').hidden = !ends.length;
}

function engines(root, lane, may) {
  const { stats } = lane;
  const lost = listed(stats.kills_total);
  const restarts = stats.restarts_total;
  say(part(root, 'restarts'), `${restarts} ${restarts === 1 ? 'restart' : 'restarts'}`);
  mark(part(root, 'restarts'), 'data-grade', counted(lane.lately.kills_total).length ? 'grave' : 'fine');
  say(part(root, 'lost'), lost || 'none');
  say(part(root, 'memory'), size(stats.engine_rss_bytes));
  const probe = stats.last_probe;
  const after = `${probe} after ${span(stats.last_probe_s)}, ${span(stats.last_probe_age_s)} ago`;
  say(part(root, 'probe'), probe === null ? 'none yet' : after);
  const recycled = stats.recycled_total ? ` · ${stats.recycled_total} recycled` : '';
  say(part(root, 'engine'), `engine ${stats.incarnation}${recycled}`);
  const button = part(root, 'kill');
  if (button.hidden === may && !may && document.activeElement === button) part(root, 'name').focus();
  button.hidden = !may;
  mark(button, 'aria-disabled', stats.engine_pid === null);
  Object.assign(button.dataset, { act: 'kill', lane: lane.name, incarnation: stats.incarnation });
  say(button, `Kill engine ${stats.incarnation}`);
}

// --- sequences -------------------------------------------------------------------------------------------------------

function sequences(root, lane, allowed) {
  const rows = lane.stats.sequences;
  const buttons = allowed.has('cancel') || allowed.has('revoke');
  keyed(part(root, 'rows'), rows, (row) => row.id, () => copy('sequence'), (item, row) => {
    sequence(item, row, lane);
    act(part(item, 'cancel'), allowed.has('cancel') && row.phase !== 'stopping', `Cancel`, {
      act: 'cancel', lane: lane.name, sequence: row.id, whose: whose(row),
    });
    act(part(item, 'revoke'), allowed.has('revoke') && row.lease !== null, `Revoke lease`, {
      act: 'revoke', lane: lane.name, lease: row.lease ?? '', whose: whose(row),
    });
  });
  part(root, 'act-head').hidden = !buttons;
  part(root, 'sequences').hidden = !rows.length;
  const more = lane.younger ? `and ${lane.younger} younger ones` : '';
  say(part(root, 'younger'), rows.length ? more : 'nothing inside');
}

function whose(row) {
  return visible(row.owner) || '(nobody)';
}

function sequence(item, row, lane) {
  const left = row.deadline === null ? null : row.deadline - lane.now;
  const blocks = Object.values(row.blocks).reduce((sum, figure) => sum + figure, 0);
  mark(item, 'data-phase', row.phase);
  say(part(item, 'id'), `${row.id}`);
  say(part(item, 'phase'), row.phase);
  say(part(item, 'age'), span(row.age_s));
  say(part(item, 'tokens'), `${row.tokens}`);
  say(part(item, 'blocks'), `${blocks}`);
  say(part(item, 'left'), span(left));
  mark(part(item, 'left'), 'data-grade', left !== null && left < SOON ? 'minor' : 'fine');
  say(part(item, 'bound'), row.bound ?? UNKNOWN);
  say(part(item, 'owner'), whose(row));
  say(part(item, 'label'), visible(row.label));
  say(part(item, 'lease'), row.lease ?? UNKNOWN);
  part(item, 'lease').toggleAttribute('data-none', row.lease === null);
}

function act(button, may, words, told) {
  if (!may && document.activeElement === button) {
    const other = [...button.parentElement.querySelectorAll('button:not([hidden])')].find((one) => one !== button);
    (other ?? button.closest('section').querySelector('[tabindex="-1"]')).focus();
  }
  button.hidden = !may;
  if (!may) return;
  Object.assign(button.dataset, told);
  say(button, words);
  const what = told.act === 'cancel' ? `sequence ${told.sequence}` : told.lease;
  mark(button, 'aria-label', `${words} ${what} of ${told.whose}`);
}
