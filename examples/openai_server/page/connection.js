// The server's events, and how old what they tell is: one page that has lost its server never looks alive.

const GRACE_S = 3; // beyond when the next picture is due
const AGAIN_MS = 2000;

const now = () => performance.now() / 1000;

/**
 * `show` gets each picture as it comes; `tick` five times a second gets {lost, age, silent, how, first}: whether the
 * server is lost, how old the last picture is, for how long there was none, how it came, and whether there was never one.
 */
export class Connection {
  constructor(show, tick) {
    this.show = show;
    this.tick = tick;
    this.every = 0.5;
    this.heard = now(); // when a picture came
    this.began = now();
    this.lag = null; // of the last picture, when it came
    this.shift = Infinity; // least difference of the two clocks: whatever is more was on its way for longer
    this.how = '';
    this.source = null;
    this.timer = 0;
    this.open();
    setInterval(() => this.look(), 200);
  }

  open() {
    this.source?.close();
    clearTimeout(this.timer);
    this.shift = Infinity;
    this.began = now();
    this.source = new EventSource('lane/events');
    this.source.onmessage = (event) => this.take(event.data, '');
    this.source.onerror = () => this.again();
  }

  /** The stream has ended, or there is none: what one look tells until there is. */
  async again() {
    this.source.close();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.open(), AGAIN_MS);
    try {
      const answer = await fetch('lane/state', { cache: 'no-store', signal: AbortSignal.timeout(AGAIN_MS) });
      if (answer.ok) this.take(await answer.text(), 'there is no stream: asked every 2 s');
    } catch {
      // nobody is there; the age says so
    }
  }

  take(text, how) {
    const picture = JSON.parse(text);
    this.how = how;
    this.every = picture.every_s;
    this.heard = now();
    this.shift = Math.min(this.shift, this.heard - picture.at);
    this.lag = this.heard - picture.at - this.shift;
    this.show(picture);
  }

  look() {
    const first = this.lag === null;
    const silent = now() - this.heard;
    const age = first ? null : silent + this.lag;
    const due = first ? GRACE_S : (this.how ? AGAIN_MS / 1000 : this.every) + GRACE_S;
    const lost = (age ?? silent) > due;
    const waited = now() - this.began;
    if (lost && waited > 2 * GRACE_S && this.source.readyState !== EventSource.CLOSED) this.open();
    this.tick({ lost, age, silent, how: this.how, first });
  }
}
