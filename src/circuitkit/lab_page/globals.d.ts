/** What the scripts of the lab share on a page: data arrives in classic scripts, because a page from a file may not fetch. */
interface CircuitLabs {
  deliver(name: string, value: unknown): void;
  need(name: string): Promise<any>;
  forget(name: string): void;
}
interface Window {
  circuitLab: CircuitLabs;
}
