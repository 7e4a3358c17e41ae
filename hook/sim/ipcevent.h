/* ipcevent.h: events that several processes know; see ipcevent.c. */
#ifndef GFAAS_SIM_IPCEVENT_H
#define GFAAS_SIM_IPCEVENT_H

#include "sim.h"

/* The recording that the event stands for now, whoever made it; NULL when there is
 * none or it is over. */
struct record *event_latest(struct event *e);
/* Numbers a recording of the event, before it is put into a stream. */
void event_numbered(struct event *e, struct record *r);
void event_recorded(struct event *e, struct record *r); /* and when it is there */
void event_passed(struct record *r); /* a numbered recording is over */
void event_closed(struct event *e);

#endif
