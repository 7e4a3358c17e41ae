/* ipcevent.h: events that several processes know; see ipcevent.c. */
#pragma once

#include "sim.h"

/* Returns the event's current recording, by any process; NULL if there is none or it has completed. */
struct record *event_pending(struct event *e);
/* Numbers a recording of the event, before it is added to a stream. */
void event_numbered(struct event *e, struct record *r);
void event_recorded(struct event *e, struct record *r); /* after it was added */
void event_passed(struct record *r); /* a numbered recording has completed */
void event_closed(struct event *e);
