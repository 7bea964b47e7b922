{{/* Names, labels and images. */}}

{{- define "tandemmq.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "tandemmq.fullname" -}}
{{- default .Release.Name .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "tandemmq.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride }}
{{- end }}

{{/* metadata of an object: (list root name component labels annotations), the last two optional. */}}
{{- define "tandemmq.metadata" -}}
{{- $root := index . 0 }}
{{- $labels := index (append . dict) 3 }}
{{- $annotations := dict }}{{ if gt (len .) 4 }}{{ $annotations = index . 4 }}{{ end -}}
name: {{ index . 1 | quote }}
namespace: {{ include "tandemmq.namespace" $root | quote }}
labels:
  {{- include "tandemmq.selector" (list $root (index . 2)) | nindent 2 }}
  app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
  app.kubernetes.io/managed-by: {{ $root.Release.Service }}
  app.kubernetes.io/part-of: tandemmq
  helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
  {{- with mergeOverwrite (deepCopy $root.Values.commonLabels) $labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with mergeOverwrite (deepCopy $root.Values.commonAnnotations) $annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Labels that never change, for selectors: (list root component). */}}
{{- define "tandemmq.selector" -}}
app.kubernetes.io/name: {{ include "tandemmq.name" (index . 0) | quote }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name | quote }}
app.kubernetes.io/component: {{ index . 1 | quote }}
{{- end }}

{{/* Reference of an image: (list root image). */}}
{{- define "tandemmq.image" -}}
{{- $root := index . 0 }}{{ $image := index . 1 }}
{{- $registry := default $root.Values.image.registry $root.Values.global.imageRegistry }}
{{- with $registry }}{{ trimSuffix "/" . }}/{{ end }}{{ $image.repository }}
{{- if $image.digest }}@{{ $image.digest }}
{{- else }}:{{ coalesce $image.tag $root.Values.image.tag $root.Chart.AppVersion }}{{ end }}
{{- end }}

{{/* Name of a ServiceAccount: (list root component options). */}}
{{- define "tandemmq.serviceAccount" -}}
{{- $options := index . 2 }}
{{- if $options.name }}{{ $options.name }}
{{- else if $options.create }}{{ include "tandemmq.fullname" (index . 0) }}-{{ index . 1 }}
{{- else }}default{{ end }}
{{- end }}

{{/* host:port of every NameServer, as namesrvAddr has them. */}}
{{- define "tandemmq.nameServers" -}}
{{- $service := printf "%s-nameserver" (include "tandemmq.fullname" .) }}
{{- $addresses := list }}
{{- range $i := until (int .Values.nameserver.replicas) }}
{{- $addresses = append $addresses (printf "%s-%d.%s.%s.svc.%s:9876" $service $i $service (include "tandemmq.namespace" $) $.Values.clusterDomain) }}
{{- end }}
{{- join ";" $addresses }}
{{- end }}

{{/* Slaves of a broker group: (list root group). */}}
{{- define "tandemmq.slaves" -}}
{{- $group := index . 1 }}
{{- if hasKey $group "slaves" }}{{ $group.slaves }}{{ else if eq (index . 0).Values.replication "none" }}0{{ else }}1{{ end }}
{{- end }}

{{/* "true" where a group's members take turns as its master, else empty. */}}
{{- define "tandemmq.failover" -}}
{{- if and (eq .Values.replication "sync") (ne (toString .Values.failover.enabled) "false") }}true{{ end }}
{{- end }}

{{/* Name of a group's Lease and of the Service that leads to its master: (list root group). */}}
{{- define "tandemmq.group" -}}
{{ include "tandemmq.fullname" (index . 0) }}-{{ index . 1 }}
{{- end }}

{{/*
The StatefulSets of all brokers, as YAML with the one key `sets`: a master for each group, and its slaves if it has any.
`firstId` is the broker id of the first pod, and its ordinal.
*/}}
{{- define "tandemmq.brokerSets" -}}
sets:
{{- range $place, $group := .Values.brokerGroups }}
{{- $slaves := include "tandemmq.slaves" (list $ $group) | int }}
{{- $prefix := printf "%s-%s" (include "tandemmq.fullname" $) $group.name }}
  - {name: {{ $prefix }}-master, group: {{ $group.name | quote }}, place: {{ $place }}, role: master, replicas: 1, firstId: 0}
{{- if $slaves }}
  - {name: {{ $prefix }}-slave, group: {{ $group.name | quote }}, place: {{ $place }}, role: slave, replicas: {{ $slaves }}, firstId: 1}
{{- end }}
{{- end }}
{{- end }}

{{/* key=value lines of a map. A whole number of YAML is a float by now, and must not become 1e+06. */}}
{{- define "tandemmq.properties" -}}
{{- range $key, $value := . }}
{{ $key }}={{ if and (kindIs "float64" $value) (eq $value (floor $value)) }}{{ int64 $value }}{{ else }}{{ $value }}{{ end }}
{{- end }}
{{- end }}

{{/* Secret with the certificate of the client plane. */}}
{{- define "tandemmq.tlsSecret" -}}
{{- default (printf "%s-broker-tls" (include "tandemmq.fullname" .)) .Values.tls.existingSecret }}
{{- end }}

{{/* The peers of a NetworkPolicy that are this release's own pods: (list root component…). */}}
{{- define "tandemmq.peers" -}}
- podSelector:
    matchLabels:
      app.kubernetes.io/name: {{ include "tandemmq.name" (first .) | quote }}
      app.kubernetes.io/instance: {{ (first .).Release.Name | quote }}
    matchExpressions:
      - {key: app.kubernetes.io/component, operator: In, values: {{ rest . | toJson }}}
{{- end }}
