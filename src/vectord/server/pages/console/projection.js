// Vectors to a plane: principal components, and groups of near vectors for colours.

const ROUNDS = 40; // of the power iteration
const GROUP_ROUNDS = 12;

export function dot(one, other) {
  let sum = 0;
  for (let at = 0; at < one.length; at++) sum += one[at] * other[at];
  return sum;
}

/** {points: [[x, y]], of(vector)}: the first two principal components of the vectors. */
export function planeOf(vectors) {
  const mean = meanOf(vectors);
  const rows = vectors.map((vector) => minus(vector, mean));
  const first = component(rows, []);
  const second = component(rows, [first]);
  const of = (vector) => {
    const row = minus(vector, mean);
    return [dot(row, first), dot(row, second)];
  };
  return { points: rows.map((row) => [dot(row, first), dot(row, second)]), of };
}

/** The direction of the largest variance that is orthogonal to `others`. */
function component(rows, others) {
  let direction = unit(rows.reduce((best, row) => (dot(row, row) > dot(best, best) ? row : best)));
  for (let round = 0; round < ROUNDS; round++) {
    const next = new Float64Array(direction.length);
    for (const row of rows) {
      const weight = dot(row, direction);
      for (let at = 0; at < next.length; at++) next[at] += weight * row[at];
    }
    for (const other of others) {
      const share = dot(next, other);
      for (let at = 0; at < next.length; at++) next[at] -= share * other[at];
    }
    direction = unit(next);
  }
  return direction;
}

/** The group of each vector, by k-means from points that are far from each other: the same for the same vectors. */
export function groupsOf(vectors, most) {
  const count = Math.max(1, Math.min(most, Math.round(vectors.length / 3)));
  const centres = [];
  while (centres.length < count) {
    const known = centres.length ? centres : [meanOf(vectors)];
    const distances = vectors.map((vector) => Math.min(...known.map((centre) => distance(vector, centre))));
    centres.push(vectors[distances.indexOf(distances.reduce((one, other) => Math.max(one, other)))]);
  }
  let groups = [];
  for (let round = 0; round < GROUP_ROUNDS; round++) {
    groups = vectors.map((vector) => nearest(vector, centres));
    centres.forEach((_, group) => {
      const members = vectors.filter((_vector, at) => groups[at] === group);
      if (members.length) centres[group] = meanOf(members);
    });
  }
  return groups;
}

function nearest(vector, centres) {
  const distances = centres.map((centre) => distance(vector, centre));
  return distances.indexOf(Math.min(...distances));
}

function meanOf(vectors) {
  const sum = new Float64Array(vectors[0].length);
  for (const vector of vectors) for (let at = 0; at < sum.length; at++) sum[at] += vector[at] / vectors.length;
  return sum;
}

function distance(one, other) {
  let sum = 0;
  for (let at = 0; at < one.length; at++) sum += (one[at] - other[at]) ** 2;
  return sum;
}

const minus = (vector, mean) => Float64Array.from(vector, (value, at) => value - mean[at]);

function unit(vector) {
  const length = Math.hypot(...vector) || 1;
  return vector.map((value) => value / length);
}
