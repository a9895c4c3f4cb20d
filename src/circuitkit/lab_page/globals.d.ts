/** What the scripts of the lab share on a page: data arrives in classic scripts, because a page from a file may not fetch. */
interface CircuitLabs {
  deliver(name: string, value: unknown): void;
  need(name: string): Promise<any>;
  forget(name: string): void;
  only(end: () => void): void;
}
/** What pages keep on the reader's device: `book/_static/kept.js`. */
interface CircuitKept {
  page: string;
  ALL: string;
  read(key: string): string | null;
  write(key: string, value: string | null): void;
}
interface Window {
  circuitKept: CircuitKept;
  circuitLab: CircuitLabs;
}
