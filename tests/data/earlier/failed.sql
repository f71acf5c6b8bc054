PRAGMA application_id = 1349415794;
PRAGMA user_version = 1;
BEGIN TRANSACTION;
CREATE TABLE kinds (kind INTEGER PRIMARY KEY, total INTEGER NOT NULL, left INTEGER NOT NULL);
INSERT INTO "kinds" VALUES(0,2,2);
INSERT INTO "kinds" VALUES(1,0,0);
INSERT INTO "kinds" VALUES(2,0,0);
INSERT INTO "kinds" VALUES(3,0,0);
CREATE TABLE payloads (
        kind INTEGER NOT NULL, place INTEGER NOT NULL, json TEXT NOT NULL, PRIMARY KEY (kind, place));
INSERT INTO "payloads" VALUES(0,0,'1');
INSERT INTO "payloads" VALUES(0,1,'2');
CREATE TABLE results (
        kind INTEGER NOT NULL, place INTEGER NOT NULL, json TEXT NOT NULL, PRIMARY KEY (kind, place));
CREATE TABLE run (
        one INTEGER PRIMARY KEY CHECK (one = 1), id TEXT NOT NULL, publish_to TEXT,
        failed_kind INTEGER, failed_place INTEGER);
INSERT INTO "run" VALUES(1,'044431dd73ed41208cc80b2ea1bf6f0b',NULL,0,0);
CREATE TABLE tasks (
        kind INTEGER NOT NULL, place INTEGER NOT NULL, state INTEGER NOT NULL, fence INTEGER NOT NULL,
        attempts INTEGER NOT NULL, lease_until REAL, boot_id TEXT NOT NULL, since REAL, claimed REAL, pid INTEGER,
        host TEXT NOT NULL, trouble TEXT NOT NULL, PRIMARY KEY (kind, place));
INSERT INTO "tasks" VALUES(0,0,3,1,1,3548.883451502,'11111111-2222-4333-8444-555555555555',3518.883451502,1.7959889947043423653e+09,6948,'vm','Traceback (most recent call last):
  File "train.py", line 61, in boom
    def boom(payload): raise ValueError("no such file")
                       ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
ValueError: no such file
');
INSERT INTO "tasks" VALUES(0,1,0,0,0,NULL,'',NULL,NULL,NULL,'','');
CREATE INDEX waiting ON tasks (kind, place) WHERE state = 0;
CREATE INDEX leased ON tasks (kind, place) WHERE state = 1;
COMMIT;
