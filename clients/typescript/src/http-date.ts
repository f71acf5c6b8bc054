/** Read a date as RFC 9110 writes it; `Date.parse` also takes "-5" for a date. */

const MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
/** `Sun, 06 Nov 1994 08:49:37 GMT`, and with dashes as RFC 850 has it: `Sunday, 06-Nov-94 08:49:37 GMT`. */
const USUAL = /^[a-z]+, +(\d{1,2})[ -]([a-z]{3})[ -](\d{4}|\d{2}) +(\d\d):(\d\d):(\d\d) +(?:gmt|utc|[+-]0000)$/i;
/** As `asctime` of C writes it: `Sun Nov  6 08:49:37 1994`. */
const OF_C = /^[a-z]{3} +([a-z]{3}) +(\d{1,2}) +(\d\d):(\d\d):(\d\d) +(\d{4})$/i;

/** The moment in Unix seconds; undefined where `text` is no such date. */
export function readHttpDate(text: string): number | undefined {
  const usual = USUAL.exec(text);
  if (usual !== null) {
    return moment(usual[3], usual[2], usual[1], usual[4], usual[5], usual[6]);
  }
  const ofC = OF_C.exec(text);
  return ofC === null ? undefined : moment(ofC[6], ofC[1], ofC[2], ofC[3], ofC[4], ofC[5]);
}

function moment(year = "", month = "", ...rest: (string | undefined)[]): number | undefined {
  const [day = 0, hour = 0, minute = 0, second = 0] = rest.map(Number);
  const place = MONTHS.indexOf(month.toLowerCase());
  const inRange = day >= 1 && day <= 31 && hour < 24 && minute < 60 && second <= 60;
  return place < 0 || !inRange ? undefined : Date.UTC(fullYear(year), place, day, hour, minute, second) / 1000;
}

/** A year of two digits is one from 1969 to 2068. */
function fullYear(text: string): number {
  const year = Number(text);
  return text.length > 2 ? year : year + (year < 69 ? 2000 : 1900);
}
