"""The lab: a model that runs in a web page, whose heads can be switched off and whose wires can be cut.

`interface.js` says how its sides speak: `view.js` draws, `session.js` knows what the reader has set, and an engine computes. The
engine of a page is a worker (`asking.js`, `worker.js`, `engine.js`). `bundle.py` turns the modules into scripts.
"""
