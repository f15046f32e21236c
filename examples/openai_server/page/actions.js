// Buttons, behind a token that is typed in and kept for as long as this tab is open.

import { say, mark } from './drawing.js';

const KEPT = 'boundedgen-admin-token';
const PATIENCE_MS = 5000;
const SHOWN_MS = 6000; // what was done; what was not stays until the next one
const find = (id) => document.getElementById(id);

export class Actions {
  /** `changed`: the buttons are to be shown, or to be hidden. */
  constructor(changed) {
    this.changed = changed;
    this.asked = null;
    this.button = null;
    find('unlock').addEventListener('submit', (event) => this.unlock(event));
    find('lock').addEventListener('click', () => this.lock('the buttons are hidden'));
    find('lanes').addEventListener('click', (event) => this.pressed(event));
    find('ask-no').addEventListener('click', () => find('ask').close());
    find('ask-yes').addEventListener('click', () => this.confirmed());
    find('ask').addEventListener('close', () => this.refocus());
  }

  get token() {
    return sessionStorage.getItem(KEPT);
  }

  /** The names of what may be done, out of what the server offers. */
  allowed(can) {
    return new Set(this.token ? can : []);
  }

  offer(can) {
    find('admin').hidden = !can.length;
    find('unlock').hidden = Boolean(this.token);
    find('lock').hidden = !this.token;
  }

  async unlock(event) {
    event.preventDefault();
    const token = find('token').value.trim();
    const { ok, words } = await this.post('admin', {}, token);
    if (!ok) {
      this.tell(false, words);
      find('token').focus();
      return;
    }
    sessionStorage.setItem(KEPT, token);
    find('token').value = '';
    this.changed();
    find('lock').focus(); // which says that they are there
    this.tell(true, '');
  }

  lock(words) {
    sessionStorage.removeItem(KEPT);
    this.changed();
    find('token').focus();
    this.tell(true, words);
  }

  pressed(event) {
    const button = event.target.closest('button[data-act]');
    if (!button || button.getAttribute('aria-disabled') === 'true') return;
    const told = { ...button.dataset };
    this.button = button;
    this.asked = ASKING[told.act](told);
    say(find('ask-head'), this.asked.head);
    say(find('ask-words'), this.asked.words);
    say(find('ask-yes'), this.asked.yes);
    find('ask').showModal();
    find(this.asked.grave ? 'ask-no' : 'ask-yes').focus();
  }

  async confirmed() {
    const { act, body } = this.asked;
    find('ask').close();
    const { ok, status, words } = await this.post(act, body, this.token ?? '');
    if (status === 401) this.lock('');
    this.tell(ok, words);
  }

  /** A dialog gives the focus back to its button; if that is gone, to the heading of what it was in. */
  refocus() {
    if (!this.button.isConnected || this.button.hidden) find('lanes').querySelector('.inside h2')?.focus();
  }

  tell(ok, words) {
    const result = find('result');
    mark(result, 'data-grade', ok ? 'fine' : 'grave');
    result.textContent = words;
    clearTimeout(this.clearing);
    if (ok) this.clearing = setTimeout(() => say(result, ''), SHOWN_MS);
  }

  async post(act, body, token) {
    if (!/^[\x20-\x7e]*$/.test(token)) return { ok: false, status: 401, words: 'not done: this is not the admin token' };
    try {
      const answer = await fetch(`lane/${act}`, {
        method: 'POST',
        headers: { Authorization: `Bearer ${token}`, 'Content-Type': 'application/json' },
        body: JSON.stringify(body),
        credentials: 'omit',
        cache: 'no-store',
        signal: AbortSignal.timeout(PATIENCE_MS),
      });
      const told = await answer.json().catch(() => ({}));
      const words = answer.ok ? told.done : `not done: ${told.error?.message ?? `HTTP ${answer.status}`}`;
      return { ok: answer.ok, status: answer.status, words };
    } catch {
      return { ok: false, status: 0, words: 'no answer from the server: it may have been done, or not' };
    }
  }
}

/** What is asked before it is done: a table that moves on must not end the wrong one. */
const ASKING = {
  cancel: ({ lane, sequence, whose }) => ({
    act: 'cancel',
    body: { lane, sequence: Number(sequence) },
    head: `Cancel sequence ${sequence}?`,
    words: `It is of ${whose}, who is told that it was cancelled and gets what there is.`,
    yes: `Cancel sequence ${sequence}`,
  }),
  revoke: ({ lane, lease, whose }) => ({
    act: 'revoke',
    body: { lane, lease },
    head: `Revoke lease ${lease}?`,
    words: `It is of ${whose}. Everything that was submitted under it ends, and it does not come back.`,
    yes: `Revoke lease ${lease}`,
  }),
  kill: ({ lane, incarnation }) => ({
    act: 'kill',
    grave: true,
    body: { lane, incarnation: Number(incarnation) },
    head: `Kill engine ${incarnation} of ${lane}?`,
    words: 'What runs in it ends engine_lost, who waits keeps the place, and another one is started. It counts as lost.',
    yes: `Kill engine ${incarnation}`,
  }),
};
