// The page: pictures from the server, drawn; how old they are; what a screen reader is told.

import { Actions } from './actions.js';
import { Connection } from './connection.js';
import { copy, keyed, mark, part, say } from './drawing.js';
import { drawLane } from './lane.js';
import { span, visible } from './words.js';

const NO_ANSWER = 'NO ANSWER';
const find = (id) => document.getElementById(id);

let picture = null;
let lost = false;
let announced = '';

const actions = new Actions(() => draw());

function draw() {
  if (!picture) return;
  const can = [...new Set(picture.lanes.flatMap((lane) => lane.can))];
  actions.offer(can);
  keyed(find('lanes'), picture.lanes, (lane) => lane.name, () => copy('lane'), (root, lane) => {
    drawLane(root, lane, actions.allowed(lane.can));
    if (lost) stale(root, lane);
  });
  say(find('title'), `boundedgen ${picture.lanes[0]?.version ?? ''}`);
  told();
}

/** Of now, only that there is no answer is known. */
function stale(root, lane) {
  say(part(root, 'state'), NO_ANSWER);
  say(part(root, 'facts'), `was ${lane.health.state.toUpperCase()}; what follows is of then`);
}

function told() {
  const stateOf = (lane) => (lost ? NO_ANSWER : lane.health.state.toUpperCase());
  document.title = picture.lanes.map((lane) => `${stateOf(lane)} ${visible(lane.name)}`).join(', ');
  const lines = picture.lanes.map(({ name, health }) => `${visible(name)} is ${health.state}`);
  const words = lost ? 'no connection to the server' : lines.join(', ');
  if (words === announced) return;
  announced = words;
  const reasons = lost ? [] : picture.lanes.map((lane) => lane.health.reason).filter(Boolean);
  say(find('health-said'), [words, ...reasons].join(': '));
}

function tick({ lost: gone, age, silent, how, first }) {
  const words = first ? 'no picture yet' : `${gone ? 'last' : 'live'}, ${span(age)} old${how ? `; ${how}` : ''}`;
  say(find('link'), words);
  mark(find('link'), 'data-grade', gone ? 'grave' : age > 2 ? 'minor' : 'aside');
  say(find('lost-since'), first ? `for ${span(silent)}` : `for ${span(silent)}: what is shown is ${span(age)} old`);
  if (gone === lost) return;
  lost = gone;
  find('lost').hidden = !lost;
  document.body.toggleAttribute('data-lost', lost);
  draw();
}

new Connection((shown) => {
  picture = shown;
  draw();
}, tick);
