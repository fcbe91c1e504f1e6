// How far two models agree: their orders of the same texts.

import { decimal } from "./format.js";

const NEAREST = 10;

/** A sentence. rows, others: for each query, the scores that one model gives to the texts. */
export function agreementOf(rows, others) {
  const nearest = Math.min(NEAREST, Math.ceil(rows[0].length / 3));
  const shared = meanOf(rows, (row, at) => {
    const best = new Set(bestFirst(row).slice(0, nearest));
    return bestFirst(others[at]).slice(0, nearest).filter((text) => best.has(text)).length;
  });
  const correlation = meanOf(rows, (row, at) => correlationOf(ranksOf(row), ranksOf(others[at])));
  const means = rows.length > 1 ? `, means of ${rows.length} texts` : "";
  return `Nearest texts in common: ${decimal(shared, rows.length > 1 ? 1 : 0)} of ${nearest}; Spearman's rank correlation: ` +
    `${Number.isNaN(correlation) ? "undefined" : decimal(correlation, 2)} (1: the same order, 0: unrelated)${means}.`;
}

const meanOf = (rows, measure) => rows.reduce((sum, row, at) => sum + measure(row, at), 0) / rows.length;

const bestFirst = (scores) => [...scores.keys()].sort((one, other) => scores[other] - scores[one]);

/** The rank of each score from 0; equal scores have the mean of their ranks. */
function ranksOf(scores) {
  const order = bestFirst(scores);
  const ranks = [];
  for (let first = 0; first < order.length;) {
    let last = first;
    while (last + 1 < order.length && scores[order[last + 1]] === scores[order[first]]) last++;
    for (let at = first; at <= last; at++) ranks[order[at]] = (first + last) / 2;
    first = last + 1;
  }
  return ranks;
}

/** Pearson's correlation, which is Spearman's if the values are ranks; NaN if all values of a side are equal. */
function correlationOf(one, other) {
  const mean = (one.length - 1) / 2;
  const product = (left, right) => left.reduce((sum, value, at) => sum + (value - mean) * (right[at] - mean), 0);
  return product(one, other) / Math.sqrt(product(one, one) * product(other, other));
}
