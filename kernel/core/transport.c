// SPDX-License-Identifier: GPL-2.0
/*
 * transport.c - the transports that are loaded, and what their host agents
 * say about ourselves.
 *
 * Owns the list of transports; all under the core mutex, in process context.
 */
#include "core.h"

LIST_HEAD(vmloop_transports);

static bool tables = true;
module_param(tables, bool, 0444);
MODULE_PARM_DESC(tables, "know channels with a table of lanes; off: as modules before them, for tests");

/**
 * vmloop_features() - what all modules together understand, for the agent to know
 *
 * Context: any.
 * Return: VMLOOP_F_*.
 */
u64 vmloop_features(void)
{
	return VMLOOP_F_LARGE | VMLOOP_F_GSO_UDP | VMLOOP_F_ROUTED |
	       VMLOOP_F_RECEIVERS | VMLOOP_F_SPREAD |
	       (tables ? VMLOOP_F_LANES | VMLOOP_F_MOVES : 0);
}
EXPORT_SYMBOL_GPL(vmloop_features);

/**
 * vmloop_transport_register() - a transport is loaded
 * @transport: name, owner and ops are set; stays until it is unregistered
 *
 * Context: process context, takes the core mutex.
 * Return: 0.
 */
int vmloop_transport_register(struct vmloop_transport *transport)
{
	INIT_LIST_HEAD(&transport->staged);
	INIT_LIST_HEAD(&transport->ours);
	mutex_lock(&vmloop_mutex);
	list_add_tail(&transport->list, &vmloop_transports);
	mutex_unlock(&vmloop_mutex);
	return 0;
}
EXPORT_SYMBOL_GPL(vmloop_transport_register);

/**
 * vmloop_transport_unregister() - a transport is about to be unloaded
 * @transport: registered before; has removed all of its links
 *
 * After return the core calls none of its operations.
 *
 * Context: process context, takes the core mutex.
 */
void vmloop_transport_unregister(struct vmloop_transport *transport)
{
	mutex_lock(&vmloop_mutex);
	vmloop_directory_clear(transport);
	list_del(&transport->list);
	mutex_unlock(&vmloop_mutex);
}
EXPORT_SYMBOL_GPL(vmloop_transport_unregister);

/**
 * vmloop_agent_here() - the host agent has introduced itself
 * @transport: over which transport
 * @welcome: a private copy of what it said
 *
 * Context: process context, takes the core mutex.
 */
void vmloop_agent_here(struct vmloop_transport *transport,
		       const struct vmloop_msg_welcome *welcome)
{
	mutex_lock(&vmloop_mutex);
	transport->id = welcome->id;
	transport->epoch = welcome->epoch;
	transport->agent = welcome->agent;
	transport->idle_ms = welcome->idle_ms;
	strscpy(transport->guest, welcome->name, sizeof(transport->guest));
	vmloop_channels_report(transport);
	vmloop_channels_look(transport);	/* idle_ms may be another */
	mutex_unlock(&vmloop_mutex);
	vmloop_address_advertise();
}
EXPORT_SYMBOL_GPL(vmloop_agent_here);

/**
 * vmloop_agent_gone() - the host agent cannot be talked to any more
 * @transport: over which transport
 *
 * The directory stays as it was: channels work without an agent.
 *
 * Context: process context, takes the core mutex.
 */
void vmloop_agent_gone(struct vmloop_transport *transport)
{
	mutex_lock(&vmloop_mutex);
	transport->agent = 0;
	mutex_unlock(&vmloop_mutex);
}
EXPORT_SYMBOL_GPL(vmloop_agent_gone);
