// Package loadtest is the use case behind gfaas-profile load: it sends requests to a
// server or to instances that run, and derives the figures of a load test.
//
// ToURL and ToInstances return targets for load.Run; New turns the result of a load into
// a Result, whose JSON form is part of the published interface. Targets are safe for
// concurrent use.
package loadtest
